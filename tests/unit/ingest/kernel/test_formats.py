"""Lines of kernel logs in every shape they are kept in."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.kernel.formats import MAX_LINE, parse_line
from ingest.kernel.line import KernelLine

XID = "NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus."
BOOT_US = 1_790_000_000_000_000
NOW_US = round(datetime(2026, 1, 1, 0, 10, tzinfo=UTC).timestamp()) * 1_000_000


def us(*date: int, zone=UTC) -> int:
    return round(datetime(*date, tzinfo=zone).timestamp() * 1_000_000)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("raw", "ts_us", "facility", "severity"),
    [
        (f"6,3973,227996636,-;{XID}", BOOT_US + 227_996_636, 0, 6),
        (
            f"4,339,5140900,-,caller=T1;{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:b3:00.0\n",
            BOOT_US + 5_140_900,
            0,
            4,
        ),
        (f"[  123.456789] {XID}", BOOT_US + 123_456_789, None, None),
        (f"[  123.456789] [ T1946] {XID}", BOOT_US + 123_456_789, None, None),
        (f"[  123.456789][    C3] {XID}", BOOT_US + 123_456_789, None, None),
        (f"[123] {XID}", BOOT_US + 123_000_000, None, None),
        (f"[Sun Dec  1 14:54:40 2024] {XID}", us(2024, 12, 1, 14, 54, 40), None, None),
        (f"[Sun Dec 1 14:54:40 2024] host1 kernel: {XID}", us(2024, 12, 1, 14, 54, 40), None, None),
        (f"kern  :err   : 2025-01-21T04:41:44,285060+00:00 {XID}", us(2025, 1, 21, 4, 41, 44, 285060), 0, 3),
        (f"kern  :warn  : [  123.456789] {XID}", BOOT_US + 123_456_789, 0, 4),
        (f"2025-01-21T04:41:44,285060+01:00 {XID}", us(2025, 1, 21, 3, 41, 44, 285060), None, None),
        (f"2026-04-22T21:25:20.458998481Z host1 kernel: {XID}", us(2026, 4, 22, 21, 25, 20, 458998), 0, None),
        (f"2026-04-22T21:25:20+0200 host1 kernel: {XID}", us(2026, 4, 22, 19, 25, 20), 0, None),
        (f"Dec 31 23:59:58 host1 kernel: {XID}", us(2025, 12, 31, 23, 59, 58), 0, None),
        (f"Dec 31 23:59:58 host1 kernel: [103859.498995] {XID}", us(2025, 12, 31, 23, 59, 58), 0, None),
        (f"<4>[  123.456789] {XID}", BOOT_US + 123_456_789, 0, 4),
        (f"<3>Dec 31 23:59:58 host1 kernel: {XID}", us(2025, 12, 31, 23, 59, 58), 0, 3),
        (f"<3>1 2026-04-22T21:25:20.5Z host1 kernel - - - {XID}", us(2026, 4, 22, 21, 25, 20, 500000), 0, 3),
        (f"kernel: [103859.498995] {XID}", None, None, None),
        (f"19:15:34  {XID}", None, None, None),
        (XID, None, None, None),
    ],
)
def test_every_shape_gives_the_same_message(raw, ts_us, facility, severity):
    expected = KernelLine(ts_us, XID, facility, severity)
    assert parse_line(raw, boot_us=BOOT_US, now_us=NOW_US) == expected
    assert parse_line(raw.encode(), boot_us=BOOT_US, now_us=NOW_US) == expected


@pytest.mark.parametrize(
    "raw",
    [
        f"12,3973,227996636,-;{XID}",
        f"<12>[  123.456789] {XID}",
        f"<12>Dec 31 23:59:58 host1 kernel: {XID}",
        f"<14>1 2026-04-22T21:25:20Z host1 kernel - - - {XID}",
        f"<14>1 2026-04-22T21:25:20Z host1 python 77 - - {XID}",
        f"user  :notice: 2025-01-21T04:41:44,285060+00:00 {XID}",
        f"daemon:err   : [  123.456789] {XID}",
        f"Dec 31 23:59:58 host1 python3[4711]: {XID}",
        f"Dec 31 23:59:58 host1 root: kernel: {XID}",
        f"Dec 31 23:59:58 host1 {XID}",
        f"2026-04-22T21:25:20.458998Z host1 root: {XID}",
        f"2026-04-22T21:25:20.458998Z {XID}",
    ],
)
def test_what_user_space_wrote_is_not_taken_for_the_kernels(raw):
    line = parse_line(raw, now_us=NOW_US)
    assert line is not None
    assert line.facility not in (None, 0)


@pytest.mark.parametrize(
    "raw", ["", "\n", "   ", "\r\n", " SUBSYSTEM=pci", " DEVICE=+pci:0000:b3:00.0\n", b""]
)
def test_what_is_no_message_is_none(raw):
    assert parse_line(raw) is None


def test_times_need_to_know_when_the_kernel_started_and_what_year_it_is():
    assert parse_line(f"[  1.5] {XID}") == KernelLine(None, XID, None, None)
    assert parse_line(f"6,1,15,-;{XID}") == KernelLine(None, XID, 0, 6)
    assert parse_line(f"Dec 31 23:59:58 host1 kernel: {XID}") == KernelLine(None, XID, 0, None)


def test_a_date_without_a_year_is_the_last_such_date():
    def at(date: str) -> int | None:
        line = parse_line(f"{date} 12:00:00 h kernel: x", now_us=NOW_US)
        return line.ts_us if line is not None else None

    assert at("Jan  1") == us(2026, 1, 1, 12)  # a clock or a zone may be some hours ahead
    assert at("Jan  3") == us(2025, 1, 3, 12)
    assert at("Feb 29") == us(2024, 2, 29, 12)
    assert at("Feb 31") is None


def test_a_date_without_a_zone_is_of_the_zone_that_is_given():
    berlin = ZoneInfo("Europe/Berlin")
    line = parse_line("Jul  1 12:00:00 h kernel: x", now_us=NOW_US, zone=berlin)
    assert line is not None
    assert line.ts_us == us(2025, 7, 1, 10)
    line = parse_line("[Tue Jul  1 12:00:00 2025] x", zone=berlin)
    assert line is not None
    assert line.ts_us == us(2025, 7, 1, 10)


def test_a_line_end_that_the_log_has_escaped_is_data():
    line = parse_line(rf"4,1,2,-;usb 1-1: Product: Disk\x0a{XID}")
    assert line is not None
    assert line.text == rf"usb 1-1: Product: Disk\x0a{XID}"


def test_a_line_of_the_fabric_managers_log_has_its_own_shape():
    raw = "[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0"
    expected = KernelLine(us(2025, 2, 27, 15, 10, 2), raw.partition("12727] ")[2], None, 3)
    assert parse_line(raw) == expected


def test_a_long_line_is_cut():
    line = parse_line("NVRM: " + "x" * 1_000_000)
    assert line is not None
    assert len(line.text) == MAX_LINE


PIECES = st.sampled_from(
    [
        "[",
        "]",
        "<4>",
        "6,1,2,-;",
        "kern  :err   : ",
        "12:00:00 ",
        "Jan  1 ",
        "h kernel: ",
        "2025-01-01T00:00:00",
        "Z ",
        " ",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.binary(), st.lists(st.one_of(PIECES, st.text(max_size=5))).map("".join)))
def test_no_line_is_too_strange(raw):
    line = parse_line(raw, boot_us=BOOT_US, now_us=NOW_US)
    if line is not None:
        assert isinstance(line.text, str)
        assert len(line.text) <= MAX_LINE
        assert line.facility is None or 0 <= line.facility <= 200_000_000
