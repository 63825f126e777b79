"""Xids and SXids: each is told once, whatever the exporter repeats, and across restarts."""

import pytest

from contract.streams.gpu import GPU_EVENTS, GPU_SAMPLES
from ingest.testing import fake_dcgm, rows_of

NOW = 1_780_272_000_000_000
GPU = 'gpu="0",UUID="GPU-a",pci_bus_id="00000000:53:00.0"'
GAUGE = "DCGM_FI_DEV_XID_ERRORS"
WINDOW = "DCGM_EXP_XID_ERRORS_COUNT"


def gauge(code, labels=GPU, family=GAUGE):
    return f"{family}{{{labels}}} {code}\n"


def window(count, code=None, labels=GPU, family=WINDOW):
    xid = f',xid="{code}"' if code is not None else ""
    return f'{family}{{{labels},window_size_in_ms="300000"{xid}}} {count}\n'


ALIVE = f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}} 30\n"


class Host:
    """A collector fed with pages."""

    def __init__(self):
        self.collector = fake_dcgm()
        self.seconds = 0

    def show(self, *lines):
        """Return the (code, evidence, occurrences) that one page makes known."""
        self.seconds += 1
        reading = self.collector.read_page("".join([ALIVE, *lines]).encode(), NOW + self.seconds * 1_000_000)
        self.rows = rows_of(reading, GPU_EVENTS)
        return [(row["code"], row["evidence"], row["occurrences"]) for row in self.rows]

    def restart(self):
        cursor = self.collector.cursor()
        self.collector = fake_dcgm()
        self.collector.restore(cursor)


@pytest.fixture
def host():
    return Host()


def last(code):
    return (code, "last_code", 1)


def counted(code, occurrences):
    return (code, "window_count", occurrences)


def test_a_standing_code_is_told_once_at_first_sight(host):
    assert host.show(gauge(79)) == [last(79)]
    assert host.show(gauge(79)) == []
    assert host.show(gauge(79)) == []


def test_an_event_names_the_gpu_and_what_the_exporter_says(host):
    host.show(gauge(79, GPU + ',err_code="79",err_msg="GPU has fallen off the bus"'))
    assert host.rows == [
        {
            "host": "host1",
            "event": "xid",
            "gpu_uuid": "GPU-a",
            "gpu_index": 0,
            "pci_bus_id": "00000000:53:00.0",
            "code": 79,
            "evidence": "last_code",
            "occurrences": 1,
            "detail": "GPU has fallen off the bus",
            "name": "GPU has fallen off the bus",
            "severity": "fatal",
            "class": "hardware",
            "action": "restart_host",
        }
    ]


@pytest.mark.parametrize("family", ["DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"])
def test_a_changed_code_is_told_and_no_code_is_nothing(host, family):
    assert host.show(gauge(0, family=family)) == []
    assert host.show(gauge(31, family=family)) == [last(31)]
    assert host.show(gauge(45, family=family)) == [last(45)]
    assert host.show(gauge(31, family=family)) == [last(31)]


def test_a_code_that_went_back_to_none_is_told_again_when_it_returns(host):
    assert host.show(gauge(63)) == [last(63)]
    assert host.show(gauge(0)) == []
    assert host.show(gauge(63)) == [last(63)]


def test_a_restart_of_the_collector_tells_nothing_again(host):
    assert host.show(gauge(79), window(2, 79)) == [counted(79, 2)]
    host.restart()
    assert host.show(gauge(79), window(2, 79)) == []
    host.restart()
    assert host.show(gauge(79), window(3, 79)) == [counted(79, 1)]


def test_a_series_that_vanishes_is_no_event_and_forgets_nothing(host):
    assert host.show(gauge(79)) == [last(79)]
    assert host.show() == []
    assert host.show(gauge(79)) == []


def test_a_blank_or_absurd_code_is_no_code_and_forgets_nothing(host):
    assert host.show(gauge(79)) == [last(79)]
    for odd in (2_147_483_632, 9_223_372_036_854_775_794, 644_245_923, -1, "NaN", "+Inf", 79.5):
        assert host.show(gauge(odd)) == []
    assert host.show(gauge(79)) == []


def test_instances_of_one_gpu_repeat_its_code_and_it_is_one_event(host):
    instances = [gauge(43, f'{GPU},GPU_I_ID="{number}"') for number in (1, 2, 3)]
    assert host.show(gauge(43), *instances) == [last(43)]
    assert host.show(gauge(43), *instances) == []


def test_an_instance_that_alone_shows_a_code_tells_it_for_its_gpu(host):
    assert host.show(gauge(0), gauge(43, GPU + ',GPU_I_ID="1"')) == [last(43)]


def test_a_code_of_nobody_is_told_without_a_gpu_and_zero_of_nobody_is_not(host):
    assert host.show(gauge(45, 'err_code="45", job="dcgm-exporter"')) == [last(45)]
    assert "gpu_uuid" not in host.rows[0]
    assert host.show(gauge(45, 'err_code="45", job="dcgm-exporter"')) == []
    reading = host.collector.read_page((ALIVE + f"{GAUGE} 0\n").encode(), NOW)
    assert reading.rejected == {"no_identity": 1}


def test_each_gpu_has_its_own_memory(host):
    other = 'gpu="1",UUID="GPU-b"'
    assert host.show(gauge(79), gauge(0, other)) == [last(79)]
    assert host.show(gauge(79), gauge(79, other)) == [last(79)]
    assert host.rows[0]["gpu_uuid"] == "GPU-b"


@pytest.mark.parametrize("family", [WINDOW, "DCGM_FI_DEV_XID_ERRORS_ACTIVE"])
def test_a_rise_of_the_window_is_told_with_how_many(host, family):
    assert host.show(window(0, family=family)) == []
    assert host.show(window(1, 94, family=family)) == [counted(94, 1)]
    assert host.show(window(4, 94, family=family)) == [counted(94, 3)]
    assert host.show(window(2, 94, family=family)) == []
    assert host.show(window(3, 94, family=family)) == [counted(94, 1)]
    assert host.show(window(0, family=family)) == []
    assert host.show(window(1, 94, family=family)) == [counted(94, 1)]


def test_instances_repeat_the_window_too(host):
    assert host.show(*(window(2, 43, f'{GPU},GPU_I_ID="{number}"') for number in (1, 2))) == [counted(43, 2)]


def test_where_both_are_there_the_window_tells_and_the_gauge_adds_nothing(host):
    assert host.show(gauge(0), window(0)) == []
    assert host.show(gauge(45), window(1, 62), window(1, 45)) == [counted(62, 1), counted(45, 1)]
    assert host.show(gauge(45), window(1, 62), window(1, 45)) == []
    assert host.show(gauge(45), window(0)) == []


def test_the_gauge_waits_one_look_for_the_window_to_count_its_code(host):
    assert host.show(gauge(0), window(0)) == []
    assert host.show(gauge(79), window(0)) == []
    assert host.show(gauge(79), window(1, 79)) == [counted(79, 1)]
    assert host.show(gauge(79), window(1, 79)) == []


def test_a_code_older_than_the_window_is_told_by_the_gauge(host):
    assert host.show(gauge(79), window(0)) == []
    assert host.show(gauge(79), window(0)) == [last(79)]
    assert host.show(gauge(79), window(0)) == []


def test_a_window_without_a_usable_code_or_count_is_nothing(host):
    odd = [window(1, "x"), window(1, 0), window("NaN", 13), window(-1, 31), window(2_147_483_632, 43)]
    assert host.show(*odd) == []


def test_the_last_code_is_in_the_samples_too():
    reading = fake_dcgm().read_page(gauge(79).encode(), NOW)
    assert rows_of(reading, GPU_SAMPLES)[0]["last_xid"] == 79


def test_an_sxid_is_told_once_for_its_switch(host):
    switch = 'DCGM_FI_DEV_NVSWITCH_{}_ERRORS{{nvswitch="nvswitch2"}} {}\n'
    assert host.show(switch.format("FATAL", 0), switch.format("NON_FATAL", 20009)) == [last(20009)]
    assert host.rows[0]["detail"] == "non-fatal"
    assert host.show(switch.format("FATAL", 20034), switch.format("NON_FATAL", 20009)) == [last(20034)]
    host.restart()
    assert host.show(switch.format("FATAL", 20034), switch.format("NON_FATAL", 20009)) == []


@pytest.mark.parametrize(
    "cursor",
    [b"", b"{}", b"[", b"[[1]]", b'[["h","gpu","u",["x"],[]]]', b'[["h","gpu","u",[1],[[1]]]]', b"\xff"],
)
def test_a_cursor_that_cannot_be_read_is_as_good_as_none(host, cursor):
    host.collector.restore(cursor)
    assert host.show(gauge(79)) == [last(79)]


def test_the_memory_is_bounded():
    collector = fake_dcgm()
    for number in range(3):
        lines = "".join(gauge(79, f'UUID="GPU-{number}-{i}"') for i in range(3_000))
        collector.read_page(lines.encode(), NOW)
    assert len(collector._memory._shown) <= 4_096
