"""When evidence was first seen."""

import hashlib

import pytest

from ingest.attestation import seen
from ingest.attestation.seen import FirstSeen

ONE, OTHER, THIRD = (hashlib.sha256(bytes([number])).hexdigest() for number in range(3))


def test_a_digest_stays_as_old_as_it_was_when_it_was_seen_first():
    first = FirstSeen()
    assert [first.note(ONE, at) for at in (5, 9, 3, 9)] == [5, 5, 3, 3]
    assert first.note(OTHER, 9) == 9


def test_what_was_seen_survives_as_text():
    first, again = FirstSeen(), FirstSeen()
    first.note(ONE, 5)
    again.load(first.dump())
    assert again.note(ONE, 9) == 5
    assert again.dump() == first.dump()


def test_only_so_many_are_remembered_and_the_one_that_comes_again_stays(monkeypatch):
    monkeypatch.setattr(seen, "MAX_SEEN", 2)
    first = FirstSeen()
    for digest, at in ((ONE, 1), (OTHER, 2), (ONE, 3), (THIRD, 4)):
        first.note(digest, at)
    assert first.note(ONE, 9) == 1
    assert first.note(OTHER, 9) == 9


@pytest.mark.parametrize("text", ["AAAA", "A", None, 5])
def test_a_text_that_was_not_dumped_is_an_error(text):
    with pytest.raises((ValueError, TypeError)):
        FirstSeen().load(text)
