"""What a host's time service says of its clock."""

import pytest

from ingest.host.timekeeping import Chrony, ClockState, KernelClock, parse_tracking

TRACKING = "C0A80001,ntp1.example,3,1780272000.123456789,0.000012345,-0.000003,0.000021,-12.345,0.002,0.031,0.000412,0.000230,64.8,Normal\n"


def test_a_slow_clock_is_behind():
    state = parse_tracking(TRACKING)
    assert state is not None
    assert (state.source, state.synchronised) == ("chrony", True)
    assert state.offset_seconds == -0.000012345
    assert state.estimated_error_seconds == 0.000021
    assert state.maximum_error_seconds == pytest.approx(0.000012345 + 0.000206 + 0.000230)


def test_a_chrony_without_a_source_is_not_synchronised():
    state = parse_tracking("00000000,,0,0.000000000,0.0,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised")
    assert state is not None
    assert not state.synchronised


@pytest.mark.parametrize(
    "line", ["", "506 Cannot talk to daemon", "a,b", TRACKING.replace("0.000012345", "soon"), "," * 13]
)
def test_another_answer_says_nothing(line):
    assert parse_tracking(line) is None


@pytest.mark.parametrize("body", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nexec sleep 30\n", "no program", None])
def test_a_program_that_fails_hangs_or_is_absent_says_nothing(tmp_path, body):
    program = tmp_path / "chronyc"
    if body is not None:
        program.write_text(body)
        program.chmod(0o755)
    assert Chrony(program, timeout_seconds=0.2).state() is None


def test_the_program_is_asked_for_tracking_with_commas(tmp_path):
    program = tmp_path / "chronyc"
    program.write_text(f'#!/bin/sh\n[ "$*" = "-c tracking" ] && printf %s "{TRACKING.strip()}"\n')
    program.chmod(0o755)
    assert Chrony(program, timeout_seconds=5).state() == parse_tracking(TRACKING)


def test_the_kernel_of_this_machine_answers_or_refuses():
    state = KernelClock().state()
    assert state is None or isinstance(state, ClockState)
    if state is not None:
        assert state.source == "kernel"
        assert state.maximum_error_seconds is not None
        assert 0 <= state.maximum_error_seconds < 1_000
        assert abs(state.offset_seconds or 0) < 1_000
