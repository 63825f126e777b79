"""Messages of a kernel become events, each once, whoever wrote what else."""

from collections import Counter

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.streams.fabric import FABRIC_EVENTS
from contract.streams.gpu import GPU_EVENTS
from ingest.collector import Rows
from ingest.kernel.bursts import MAX_OPEN
from ingest.kernel.formats import parse_line
from ingest.kernel.line import KernelLine
from ingest.kernel.parser import KernelEvents, KernelParser, pci_address
from ingest.kernel.prefilter import relevant_lines

NOW = 1_790_000_000_000_000
SECOND = 1_000_000
UUID = "GPU-5fc0bcec-c2e1-38dc-8994-2a9f9f3b709e"
XID79 = "NVRM: Xid (PCI:0000:b3:00): 79, pid=12, name=python3, GPU has fallen off the bus."
LOST = "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."
THREE_LINES = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def line(text: str, at: float = 0, facility: int | None = 0) -> KernelLine:
    return KernelLine(NOW + round(at * SECOND), text, facility, 4)


def read(*lines: KernelLine | str, parser: KernelParser | None = None) -> KernelEvents:
    parser = parser or KernelParser()
    parser.feed([entry if isinstance(entry, KernelLine) else line(entry) for entry in lines], NOW)
    return parser.events(NOW, final=True)


def only(found: KernelEvents) -> dict[str, object]:
    (row,) = [*found.gpu, *found.fabric]
    return row


def test_an_xid_names_gpu_process_and_what_it_means():
    parser = KernelParser(driver="570.124.06", gpus={"00000000:B3:00.0": UUID})
    assert only(read(XID79, parser=parser)) == {
        "ts": NOW,
        "event": "xid",
        "gpu_uuid": UUID,
        "pci_bus_id": "0000:b3:00.0",
        "evidence": "kernel_log",
        "driver_version": "570.124.06",
        "code": 79,
        "name": "GPU has fallen off the bus",
        "severity": "fatal",
        "class": "hardware",
        "action": "restart_host",
        "pid": 12,
        "process": "python3",
        "detail": "GPU has fallen off the bus.",
        "occurrences": 1,
    }


def test_the_drivers_own_map_names_a_gpu_from_then_on():
    rows = read(XID79, f"NVRM: GPU at PCI:0000:0A:00: {UUID}", "NVRM: Xid (PCI:0000:0a:00): 48, x").gpu
    assert [row["gpu_uuid"] for row in rows] == [None, UUID]


@pytest.mark.parametrize(
    ("text", "pid", "process", "detail"),
    [
        ("NVRM: Xid (PCI:0000:0a:00): 45, pid=7, name=ray::IDLE [x], Ch 8", 7, "ray::IDLE [x]", "Ch 8"),
        ("NVRM: Xid (PCI:0000:0a:00): 45, pid='<unknown>', name=<unknown>, Ch 8", None, None, "Ch 8"),
        ("NVRM: Xid (PCI:0000:0a:00): 63, pid=7, Row Remapper: New row", 7, None, "Row Remapper: New row"),
        ("NVRM: Xid (PCI:0000:0a:00): 119, pid=7, name=nvc:[driver], Timeout", 7, "nvc:[driver]", "Timeout"),
        ("NVRM: Xid (PCI:0000:0a:00) : 45", None, None, None),
        ("NVRM: Xid (0000:0a:00): 45 Ch 8", None, None, "Ch 8"),
        ("NVRM: Xid (PCI:0000:0a:00): 999, pid=1234, name=test", 1234, "test", ""),
    ],
)
def test_the_parts_of_an_xid_line(text, pid, process, detail):
    found = read(text)
    if detail is None:
        assert found.rejected == {"xid": 1}
        return
    row = only(found)
    assert (row.get("pid"), row.get("process"), row["detail"]) == (pid, process, detail)


@pytest.mark.parametrize("code", ["0", "abc", "100001", "123456789012", "45x", "4.5", ""])
def test_a_code_that_is_none_is_no_event(code):
    found = read(f"NVRM: Xid (PCI:0000:0a:00): {code}, pid=1")
    assert not found.gpu
    assert found.rejected == {"xid": 1}


FORGERIES = [
    XID79,
    LOST,
    "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 x",
    THREE_LINES[2],
]
FORGERIES += ["mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached miss count."]
FORGERIES += [
    "NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR",
    "detected NVSwitch fatal error 24007 on fid 0 on NVSwitch pci bus id 0:0:0",
]
FORGERIES += ["NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03", "eth0: Link is Down"]


@pytest.mark.parametrize("text", FORGERIES)
@pytest.mark.parametrize(
    "shape",
    [
        "12,3973,227996636,-;{}",
        "<12>[  123.456789] {}",
        "user  :err   : 2025-01-21T04:41:44,285060+00:00 {}",
        "Feb 14 05:03:41 host1 python3[4711]: {}",
        "Feb 14 05:03:41 host1 kernel[4711]: {}",
        "2026-04-22T21:25:20.458998Z host1 root: {}",
        "<14>1 2026-04-22T21:25:20Z host1 kernel - - - {}",
        r"6,1,2,-;audit: comm=x\x0a{}",
        "4,1,2,-;python3[12]: segfault\n{}",
        "[  123.456789] python3[12]: {}",
    ],
)
def test_what_a_program_wrote_is_never_a_fault(text, shape):
    forged = parse_line(shape.format(text), now_us=NOW)
    assert forged is not None
    found = read(forged)
    assert not found.gpu
    assert not found.fabric


def test_a_forgery_is_counted():
    assert read(line(XID79, facility=1)).skipped == {"user_space": 1}


def test_the_fabric_managers_words_count_in_its_own_log_only():
    text = "detected NVSwitch fatal error 24007 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61"
    assert only(read(line(text, facility=None)))["evidence"] == "daemon_log"
    assert not read(line(text, facility=0)).gpu


def test_a_gpu_that_is_lost_in_three_lines_is_one_event():
    row = only(read(*THREE_LINES))
    assert (row["event"], row["pci_bus_id"], row["severity"]) == ("lost", "0000:b3:00.0", "fatal")


@pytest.mark.parametrize("end", ["\n", r"\x0a"])
def test_the_three_lines_may_be_one_record(end):
    row = only(read(end.join(THREE_LINES)))
    assert (row["event"], row["pci_bus_id"]) == ("lost", "0000:b3:00.0")


def test_two_gpus_that_are_lost_at_once_are_told_apart():
    lines = [THREE_LINES[0], THREE_LINES[0].replace("b3", "c4")]
    lines += [text for text in THREE_LINES[1:] for _ in range(2)]
    assert [row["pci_bus_id"] for row in read(*lines).gpu] == ["0000:b3:00.0", "0000:c4:00.0"]


def test_a_gpu_that_is_not_supported_is_not_lost():
    found = read(
        THREE_LINES[0], "NVRM: installed in this system is not supported by the driver", THREE_LINES[2]
    )
    assert [row["pci_bus_id"] for row in found.gpu] == [None]


@pytest.mark.parametrize("order", [(XID79, LOST), (LOST, XID79), (XID79, *THREE_LINES), (XID79, LOST, LOST)])
def test_a_loss_that_xid_79_tells_is_not_told_again(order):
    assert [row["event"] for row in read(*order).gpu] == ["xid"]


def test_a_gpu_whose_address_cannot_be_read_is_lost_all_the_same():
    row = only(read("NVRM: GPU 18:00.0: GPU has fallen off the bus."))
    assert (row["event"], row["pci_bus_id"], row["severity"]) == ("lost", None, "fatal")


def test_a_switch_line_that_cannot_be_read_is_counted():
    assert read("nvidia-nvswitch0: SXid (invalid): some error").rejected == {"sxid": 1}
    assert read("nvidia-nvswitch0: using MSI").skipped == {"no_fault": 1}


def test_another_gpu_that_is_lost_is_another_event():
    rows = read(XID79, LOST.replace("b3", "c4")).gpu
    assert [row["event"] for row in rows] == ["xid", "lost"]


def test_a_driver_that_loads_resets_every_gpu_it_had():
    parser = KernelParser(gpus={"0000:0a:00.0": UUID})
    rows = read(
        XID79,
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build",
        parser=parser,
    ).gpu
    assert [(row["event"], row["pci_bus_id"], row["driver_version"]) for row in rows] == [
        ("xid", "0000:b3:00.0", None),
        ("reset", "0000:0a:00.0", "580.82.07"),
        ("reset", "0000:b3:00.0", "580.82.07"),
        ("reset", None, "580.82.07"),
    ]
    assert parser.driver == "580.82.07"


def test_a_gpu_that_needs_nothing_any_more_was_reset():
    advice = "NVRM: Xid (PCI:0000:b3:00): 154, GPU recovery action changed from {}"
    rows = read(
        XID79,
        advice.format("0x0 (None) to 0x1 (GPU Reset Required)"),
        advice.format("0x1 (GPU Reset Required) to 0x0 (None)"),
        XID79,
    ).gpu
    assert [(row["event"], row.get("code"), row["severity"]) for row in rows] == [
        ("xid", 79, "fatal"),
        ("xid", 154, "fatal"),
        ("reset", None, "info"),
        ("xid", 154, "info"),
        ("xid", 79, "fatal"),
    ]


def test_a_fault_after_a_reset_is_told_at_once_and_so_is_the_next_reset():
    load = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03"
    parser = KernelParser(gpus={"0000:b3:00.0": UUID})
    lines = [line(text, at) for at, text in enumerate((XID79, XID79, load, XID79, load))]
    parser.feed(lines, NOW)
    of_gpu = [row for row in parser.events(NOW).gpu if row["pci_bus_id"] is not None]
    assert [(row["event"], row["occurrences"]) for row in of_gpu] == [
        ("xid", 1),
        ("xid", 1),
        ("reset", 1),
        ("xid", 1),
        ("reset", 1),
    ]


SXID = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, {}"


def test_the_lines_that_follow_an_sxid_are_no_event_of_their_own():
    found = read(
        line(SXID.format("Fatal, Link 48 LTSSM Fault Up"), 0),
        line(SXID.format("Severity 1 Engine instance 60 Sub-engine instance 00"), 0.01),
        line(SXID.format("Data {0x000001c0, 0x00bd5c8a}"), 0.02),
    )
    row = only(found)
    assert (row["severity"], row["link"], row["nvswitch"]) == ("fatal", 48, "nvswitch1")
    assert found.skipped == {"follower": 2}


def test_a_line_that_follows_nothing_stands_for_what_was_lost():
    row = only(read(SXID.format("Data {0x1}")))
    assert (row["code"], row["severity"], row["class"]) == (20034, "fatal", "link")
    row = only(read(SXID.format("Severity 1 Engine instance 60 Sub-engine instance 00")))
    assert row["class"] == "follower"


def test_the_kernels_word_about_a_switch_counts_more_than_the_table():
    row = only(read(SXID.format("Non-fatal, Link 04 RX Short Error Rate")))
    assert (row["severity"], row["link"]) == ("nonfatal", 4)


def test_an_nvlink_line_uses_what_its_registers_say():
    text = "NVRM: Xid (PCI:0018:01:00): 149, pid=7, name=x, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x0)"
    row = only(read(text))
    assert (row["unit"], row["link"], row["reason"], row["subcode"]) == (
        "NETIR_LINK_EVT",
        9,
        "peer reset",
        14,
    )


@pytest.mark.parametrize(
    ("text", "event", "severity"),
    [
        ("amdgpu 0000:83:00.0: amdgpu: GPU reset begin!", "device_error", "nonfatal"),
        ("amdgpu 0000:83:00.0: amdgpu: GPU reset(2) succeeded!", "reset", "info"),
        ("amdgpu 0000:83:00.0: amdgpu: GPU reset succeeded, trying to resume", "reset", "info"),
        (
            "amdgpu 0000:83:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
            "device_error",
            "fatal",
        ),
        ("amdgpu 0000:83:00.0: 1048560 uncorrectable hardware errors detected in umc block", None, None),
        ("amdgpu 0000:83:00.0: amdgpu: no uncorrectable hardware errors detected in umc block", None, None),
        ("amdgpu 0000:83:00.0: amdgpu: 9 correctable hardware errors detected in gfx block", None, None),
        ("amdgpu: Topology: Add dGPU node [0x740f:0x1002]", None, None),
        ("NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0 nd-id=3 nc-id=0", "device_error", "fatal"),
        ("neuron0: NEURON_HW_ERR=DMA_ERROR device=0", "device_error", "fatal"),
        ("neuron:ndl_init: loaded", None, None),
    ],
)
def test_accelerators_of_other_makers(text, event, severity):
    found = read(text)
    assert [(row["event"], row["severity"]) for row in found.gpu] == ([(event, severity)] if event else [])


@pytest.mark.parametrize(
    ("text", "event", "nic"),
    [
        ("mlx5_core 0000:41:00.0 enp65s0f0np0: Link down", "link_down", "0000:41:00.0"),
        ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN", "link_down", "0000:ab:00.0"),
        ("ixgbe 0000:01:00.0 eth0: NIC Link is Down", "link_down", "0000:01:00.0"),
        ("e1000e: eth3: NIC Link is Down", None, None),
        ("eth0: Link is Down", "link_down", "eth0"),
        ("veth12: Link is Down", None, None),
        ("ata3: SATA link down (SStatus 0 SControl 300)", None, None),
        ("pcieport 0000:00:01.0: pciehp: Slot(3): Link Down", None, None),
        ("IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready", None, None),
        (
            "mlx5_core 0000:12:00.0 eth2: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5012 ms",
            "netdev_watchdog",
            "0000:12:00.0",
        ),
        (
            "mlx5_core 0000:12:00.0: poll_health:478:(pid 0): Fatal error 1 detected",
            "unrecoverable",
            "0000:12:00.0",
        ),
        (
            "mlx5_core 0000:12:00.0: Port module event[error]: module 0, Cable error, Bus stuck",
            "module_error",
            "0000:12:00.0",
        ),
        (
            "infiniband rdmap79s0: The device didn't send any completion for admin cmd GET(1)",
            "cmd_exec_timeout",
            "rdmap79s0",
        ),
        ("infiniband mlx5_0: create_qp:2771:(pid 1): create qp failed", None, None),
        ("efa 0000:4f:00.0: Setup irq:1861 name:efa-mgmnt@pci:0000:4f:00.0", None, None),
    ],
)
def test_network_cards(text, event, nic):
    found = read(text)
    assert [(row["event"], row["nic"]) for row in found.fabric] == ([(event, nic)] if event else [])
    assert not found.gpu


def test_a_link_that_comes_up_is_told_of_a_card_that_was_seen_to_go_down():
    up, down = ("mlx5_core 0000:41:00.0 enp65s0f0np0: Link " + state for state in ("up", "down"))
    assert [row["event"] for row in read(up).fabric] == []
    assert [row["event"] for row in read(up, down, up).fabric] == ["link_down", "link_up"]


def test_a_daemons_word_counts_for_a_carrier_and_says_so():
    text = "systemd-networkd[5398]: {}: Lost carrier"
    row = only(read(line(text.format("ib6"), facility=3)))
    assert (row["event"], row["nic"], row["evidence"]) == ("link_down", "ib6", "daemon_log")
    assert not read(line(text.format("cali12ab"), facility=3)).fabric


def test_a_line_without_a_time_has_that_of_the_reading():
    parser = KernelParser()
    parser.feed([KernelLine(None, XID79, None, None)], NOW + 5)
    assert only(parser.events(NOW + 9))["ts"] == NOW + 5


def test_two_hundred_thousand_repeats_are_a_few_rows_that_add_up():
    parser, rows = KernelParser(), []
    repeats, batches = 200_000, 400
    for batch in range(batches):  # 20 minutes of them
        at = batch * 3.0
        parser.feed([line(XID79.replace("79", "95"), at)] * (repeats // batches), NOW + round(at * SECOND))
        rows += parser.events(NOW + round(at * SECOND)).gpu
    rows += parser.events(NOW + 1_200 * SECOND, final=True).gpu
    assert rows[0]["occurrences"] == 1
    assert sum(row["occurrences"] for row in rows) == repeats
    assert len(rows) < 15


def test_a_log_whose_clock_is_hours_behind_is_gathered_alike():
    parser, rows = KernelParser(), []
    for second in range(600):
        parser.feed([line(XID79, second - 7_200)] * 3, NOW + second * SECOND)
        rows += parser.events(NOW + second * SECOND).gpu
    rows += parser.events(NOW + 600 * SECOND, final=True).gpu
    assert sum(row["occurrences"] for row in rows) == 1_800
    assert len(rows) < 10


def test_any_number_of_different_lines_fits_in_a_small_memory_and_hides_nothing_fatal():
    parser = KernelParser()
    texts = [
        f"NVRM: Xid (PCI:{n:04x}:00:00): 13, pid=1, name=x, Graphics Exception on (GPC {n % 900}, TPC 1)"
        for n in range(1, 20_000)
    ]
    parser.feed([line(text) for text in (*texts, XID79)], NOW)
    found = parser.events(NOW, final=True)
    assert sum(row["occurrences"] for row in found.gpu) == len(texts) + 1
    assert len(found.gpu) < 2 * MAX_OPEN
    assert [row["pci_bus_id"] for row in found.gpu if row["severity"] == "fatal"] == ["0000:b3:00.0"]
    (rest,) = [row for row in found.gpu if row.get("code") is None and row["occurrences"] > 1]
    assert (rest["severity"], rest["class"], rest["action"]) == (
        "nonfatal",
        "application",
        "restart_application",
    )
    assert len(orjson.dumps(parser.dump())) < 200_000


def test_too_many_different_fatal_lines_are_still_fatal():
    texts = [f"NVRM: Xid (PCI:{n:04x}:00:00): 79, x" for n in range(1, 1_000)]
    found = read(*texts)
    assert {(row["severity"], row["class"], row["action"]) for row in found.gpu} == {
        ("fatal", "hardware", "restart_host")
    }


def test_too_many_different_cards_are_counted_together():
    found = read(*(f"eth{n}: Link is Down" for n in range(500)))
    assert sum(row["occurrences"] for row in found.fabric) == 500
    columns = Rows.gather(
        FABRIC_EVENTS, [row | {"host": "h", "synthetic": True} for row in found.fabric]
    ).columns
    assert FABRIC_EVENTS.clean(columns)[1] == {}


def test_a_dump_that_cannot_be_read_is_as_good_as_none():
    for saved in ({}, {"gpus": 1}, {"gpus": {}, "lost": {}, "leaders": {}, "bursts": [["x"]]}):
        parser = KernelParser()
        parser.load(saved)
        assert len(read(XID79, parser=parser).gpu) == 1


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:48:00", "0000:48:00.0"),
        ("00000000:48:00.1", "0000:48:00.1"),
        ("0018:AB:0C", "0018:ab:0c.0"),
        ("...", None),
        ("48:00.0", None),
        ("10000:e1:00.0", "10000:e1:00.0"),
    ],
)
def test_an_address_is_written_as_linux_writes_it(text, address):
    assert pci_address(text) == address


TEXTS = st.sampled_from(
    [
        XID79,
        LOST,
        *THREE_LINES,
        SXID.format("Fatal, Link 48 LTSSM Fault Up"),
        SXID.format("Data {0x1}"),
        f"NVRM: GPU at PCI:0000:b3:00: {UUID}",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03",
        "NVRM: Xid (PCI:0000:b3:00): 13, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): x",
        "NVRM: Xid (PCI:0000:b3:00): 154, GPU recovery action changed from 0x1 (x) to 0x0 (None)",
        "mlx5_core 0000:41:00.0 enp65s0f0np0: Link down",
        "mlx5_core 0000:41:00.0 enp65s0f0np0: Link up",
        "usb 1-1: new device",
    ]
)
LINES = st.lists(st.builds(line, TEXTS, st.integers(0, 60), st.sampled_from([0, 0, 0, None, 3])), max_size=30)


def counted(rows: list[dict[str, object]]) -> Counter[object]:
    counts: Counter[object] = Counter()
    for row in rows:
        counts[row["event"], row.get("code"), row.get("pci_bus_id"), row.get("nic")] += int(
            str(row["occurrences"])
        )
    return counts


@settings(max_examples=200, deadline=None)
@given(LINES, LINES)
def test_a_restart_between_two_lines_changes_nothing(before, after):
    whole, first, second = KernelParser(), KernelParser(), KernelParser()
    whole.feed(before, NOW)
    rows = whole.events(NOW)
    whole.feed(after, NOW)
    later = whole.events(NOW, final=True)

    first.feed(before, NOW)
    assert first.events(NOW) == rows
    second.load(orjson.loads(orjson.dumps(first.dump())))
    second.feed(after, NOW)
    assert second.events(NOW, final=True) == later


@settings(max_examples=200, deadline=None)
@given(LINES)
def test_every_row_fits_its_stream_and_the_oldest_comes_first(lines):
    found = read(*lines)
    for stream, rows in ((GPU_EVENTS, found.gpu), (FABRIC_EVENTS, found.fabric)):
        if rows:
            columns = Rows.gather(stream, [row | {"host": "h", "synthetic": True} for row in rows]).columns
            assert stream.clean(columns)[1] == {}
        assert [row["ts"] for row in rows] == sorted(row["ts"] for row in rows)


NOISE = st.sampled_from(
    [
        "NVRM: ",
        "Xid (PCI:",
        "0000:b3:00",
        "): ",
        "79",
        ", pid=",
        "name=",
        "SXid",
        "nvidia-nvswitch0: ",
        "mlx5_core ",
        "Link down",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(NOISE, st.text(max_size=6))).map("".join))
def test_no_message_is_too_strange(text):
    found = read(text)
    assert len(found.gpu) + len(found.fabric) <= 4


SHAPED = st.builds(
    str.format,
    st.sampled_from(
        [
            "[  123.456789] {}",
            "4,1,2,-;{}",
            "Feb 14 05:03:41 host1 kernel: {}",
            "<4>1 2026-04-22T21:25:20Z host1 kernel - - - {}",
            "Feb 14 05:03:41 host1 systemd-networkd[7]: {}",
            "{}",
        ]
    ),
    st.one_of(
        TEXTS,
        st.sampled_from(
            [
                *FORGERIES,
                "enic 0000:0b:00.0 eth2: Link UP",
                "efa 0000:00:06.0: The device didn't send any completion for admin cmd",
                "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out",
                "ib6: Lost carrier",
                "neuron: nothing",
                "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
            ]
        ),
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(SHAPED, max_size=30), st.sampled_from(["\n", "\r\n"]))
def test_what_a_search_leaves_out_is_what_the_parser_would_leave_out(texts, end):
    def events(raws: list[bytes], left_out: int = 0) -> KernelEvents:
        parser = KernelParser()
        parser.feed([parsed for raw in raws if (parsed := parse_line(raw))], NOW, left_out=left_out)
        return parser.events(NOW, final=True)

    log = "".join(text + end for text in texts).encode()
    found = relevant_lines(log)
    assert events(found.lines, found.others) == events(log.splitlines())
