"""What a leak detector says, and what is remembered of it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.coolant.leak import LOST_AFTER_US, MAX_DETECTORS, LeakMemory, LeakState, judge, worst

NOW = 1_790_000_000_000_000


@pytest.mark.parametrize(
    ("detector", "state", "health", "meant"),
    [
        ("OK", "Enabled", "OK", "dry"),
        ("OK", None, None, "dry"),  # an excerpt has no status
        ("Warning", "Enabled", "Warning", "leak"),
        ("Critical", "Enabled", "Critical", "leak"),
        ("Critical", None, None, "leak"),
        ("Critical", "Disabled", "Critical", "suspect"),
        ("Warning", "UnavailableOffline", "OK", "suspect"),
        ("LeakDetected", "Enabled", "Critical", "suspect"),
        ("OK", "Enabled", "Critical", "suspect"),
        ("Unavailable", "Enabled", "Critical", "sensor_fault"),
        (None, "Enabled", "OK", "sensor_fault"),
        ("OK", "Disabled", "OK", "sensor_fault"),
        ("OK", "UnavailableOffline", "OK", "sensor_fault"),
        ("Dry", "Enabled", "OK", "sensor_fault"),  # nobody knows that word
        ("", "Enabled", "OK", "sensor_fault"),
        ("Absent", "Enabled", "OK", "absent"),
        ("OK", "Absent", None, "absent"),
    ],
)
def test_a_detector_is_judged_by_its_state_and_by_whether_it_is_fit(detector, state, health, meant):
    assert judge(detector, state, health) == meant


ANYTHING = st.one_of(
    st.none(), st.text(max_size=12), st.integers(), st.sampled_from(["OK", "Enabled", "Warning", "Critical"])
)


@given(detector=ANYTHING, state=ANYTHING, health=ANYTHING)
def test_nothing_is_dry_but_what_says_ok_and_is_fit_and_well(detector, state, health):
    if judge(detector, state, health) == "dry":
        assert (detector, state in (None, "Enabled"), health in (None, "OK")) == ("OK", True, True)


@given(detector=st.sampled_from(["Warning", "Critical"]), state=ANYTHING, health=ANYTHING)
def test_an_alarm_is_never_called_dry_nor_a_mere_fault(detector, state, health):
    assert judge(detector, state, health) in (("leak", "suspect") if state != "Absent" else ("absent",))


def test_of_two_words_about_one_detector_the_worse_counts():
    order: list[LeakState] = ["leak", "suspect", "sensor_fault", "dry", "absent"]
    for one, other in itertools.product(order, repeat=2):
        assert worst(one, other) == order[min(order.index(one), order.index(other))]


def test_a_lost_sensor_keeps_what_it_said_last_and_only_its_own_word_changes_that():
    memory = LeakMemory()
    memory.note("a", "leak", NOW)
    memory.note("b", "dry", NOW)
    assert memory.note("a", "sensor_fault", NOW).before == "leak"
    assert memory.note("a", "absent", NOW).before == "leak"
    assert memory.note("b", "sensor_fault", NOW).before == "dry"
    assert memory.note("a", "dry", NOW).before == "dry"


def test_only_changes_are_news_and_at_the_first_look_only_what_is_not_dry():
    memory = LeakMemory()
    states: list[LeakState] = ["dry", "dry", "leak", "leak", "sensor_fault", "dry"]
    assert [memory.note("a", state, NOW).news_after for state in states] == [
        None, None, "dry", None, "leak", "sensor_fault",
    ]  # fmt: skip
    assert memory.note("b", "suspect", NOW).news_after == "new"


def test_a_detector_is_silent_after_200_s_until_it_is_heard_again():
    memory = LeakMemory()
    memory.note("a", "dry", NOW)
    memory.note("b", "absent", NOW)
    assert memory.silent(NOW + LOST_AFTER_US) == []
    late = NOW + LOST_AFTER_US + 1
    assert memory.silent(late) == ["a"]
    memory.note("a", "sensor_fault", late)
    assert memory.silent(late) == ["a"]
    memory.hear("a", late)
    assert memory.silent(late) == []


def test_a_clock_that_is_set_back_hides_no_silence():
    memory = LeakMemory()
    memory.note("a", "dry", NOW)
    back = NOW - 86_400_000_000
    assert memory.silent(back) == []
    assert memory.silent(back + LOST_AFTER_US + 1) == ["a"]


def test_what_was_wet_is_still_known_after_a_restart():
    memory, other = LeakMemory(), LeakMemory()
    memory.note("a", "leak", NOW, "Tray")
    memory.note("a", "sensor_fault", NOW)
    other.load(memory.dump(), NOW)
    heard = other.note("a", "sensor_fault", NOW + 1)
    assert (heard.before, heard.news_after, heard.label) == ("leak", None, "Tray")


@given(
    st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.integers(), st.lists(st.text(max_size=5))))
)
def test_a_memory_of_any_other_form_is_left_out(saved):
    memory = LeakMemory()
    memory.load(saved, NOW)
    assert memory.note("a", "sensor_fault", NOW).before in (None, "leak", "suspect", "dry")


def test_a_unit_that_invents_detectors_fills_no_memory():
    memory = LeakMemory()
    for number in range(MAX_DETECTORS + 10):
        heard = memory.note(f"d{number}", "leak", NOW)
    assert heard.before == "leak"
    assert len(memory.dump()) == MAX_DETECTORS
