"""The tables: every row fits the streams, and says where it comes from."""

import pytest

from contract.streams.fabric import FABRIC_EVENTS
from contract.streams.gpu import EVENT_ACTIONS, EVENT_CLASSES, GPU_EVENTS
from ingest.kernel.bursts import MAX_OCCURRENCES
from ingest.kernel.codes import MAX_CODE, find_sxid, find_xid
from ingest.kernel.decode import decode_xid
from ingest.kernel.tables import read_table

SEVERITIES = GPU_EVENTS.by_name["severity"].states


@pytest.mark.parametrize("name", ["xid.tsv", "sxid.tsv"])
def test_a_row_of_codes_has_a_name_a_class_a_severity_an_action_and_a_source(name):
    rows = read_table(name)
    codes = [int(row["code"]) for row in rows]
    assert codes == sorted(set(codes))
    for row in rows:
        assert row["name"]
        assert row["sources"]
        assert row["class"] in EVENT_CLASSES
        assert row["action"] in EVENT_ACTIONS
        assert row["severity"] in SEVERITIES


def test_what_is_read_as_a_code_and_counted_fits_its_column():
    columns = GPU_EVENTS.by_name
    assert columns["code"].valid == columns["caused_by_code"].valid == (0, MAX_CODE)
    for stream in (GPU_EVENTS, FABRIC_EVENTS):
        assert stream.by_name["occurrences"].valid == (1, MAX_OCCURRENCES)


def test_every_xid_up_to_the_last_known_is_in_the_table():
    assert [int(row["code"]) for row in read_table("xid.tsv")] == list(range(1, 174))


def test_every_row_of_network_cards_is_an_event_of_the_stream():
    for row in read_table("nic.tsv"):
        assert row["contains"]
        assert row["sources"]
        for column in ("event", "severity", "class"):
            assert row[column] in FABRIC_EVENTS.by_name[column].states


def test_what_is_fatal_asks_for_something():
    for row in (*read_table("xid.tsv"), *read_table("sxid.tsv")):
        assert row["severity"] != "fatal" or row["action"] != "none", row["code"]


@pytest.mark.parametrize("find", [find_xid, find_sxid])
def test_a_code_in_no_table_is_unknown_and_not_dropped(find):
    code = find(77_777)
    assert (code.code, code.fault_class, code.severity, code.action) == (
        77_777,
        "unknown",
        "unknown",
        "unknown",
    )


def test_where_sources_disagree_it_is_said():
    assert find_xid(109).disagreements
    assert find_xid(62).disagreements
    assert find_sxid(11004).disagreements
    assert not find_xid(79).disagreements


def test_the_two_layouts_of_nvlink_registers_cannot_be_taken_for_each_other():
    for row in read_table("nvlink5.tsv"):
        if row["xid"] == "150":
            continue  # both are all zeros
        unit = int(row["xid"]) - 143
        new = int(row["subcode_from_575"])
        others = {int(r["subcode_before_575"]) for r in read_table("nvlink5.tsv") if r["xid"] == row["xid"]}
        for high in range(8):  # bits 9 to 7, which the new layout uses otherwise
            word = high << 7 | new
            assert word & 0x1F != unit or word >> 5 & 0x1F not in others


@pytest.mark.parametrize("layout", ["old", "new"])
def test_every_row_of_the_decode_table_is_found_by_the_registers_it_describes(layout):
    for row in read_table("nvlink5.tsv"):
        code, reason = int(row["xid"]), int(row["reason"] or 0)
        promoted = int(row["promoted"] or 0)
        if layout == "old":
            unit_bits = 0 if code == 150 else code - 143
            word = int(row["subcode_before_575"]) << 5 | unit_bits | promoted << 10
        else:
            word = int(row["subcode_from_575"]) | promoted << 7
        word |= reason << 20
        unit = row["unit_before_575" if layout == "old" else "unit_from_575"]
        said = "Nonfatal" if row["severity"] == "nonfatal" else "Fatal"
        line = f"{unit} {said} XC0 i0 Link 03 (0x{word:08x} {row['error_status'] or '0x00000000'} 0x0)"
        decoded = decode_xid(code, line)
        assert decoded.columns["action"] == row["action"], line
        assert decoded.columns["severity"] == row["severity"]
        assert not decoded.notes
