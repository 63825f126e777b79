"""Messages of every kind that no reader can take: each is one dead letter, and its neighbours are rows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import orjson

from contract.bus import Record
from contract.codec import ARROW_TYPE, MAX_ROWS, headers_of
from contract.streams.gpu import GPU_SAMPLES
from contract.testing import START_US
from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.rig import Rig

_ROW: dict[str, Any] = {"ts": [START_US], "host": "bad", "synthetic": False, "gpu_uuid": "GPU-bad"}


def _body(**changed: Any) -> bytes:
    return orjson.dumps(_ROW | changed)


def _without(name: str) -> bytes:
    return orjson.dumps({key: value for key, value in _ROW.items() if key != name})


KINDS: dict[str, tuple[dict[str, str], Callable[[], bytes], str]] = {
    "content type": ({"content-type": "text/plain"}, _body, "unknown_content_type"),
    "another type": ({"ce_type": "hallwatch.alerts.v1"}, _body, "wrong_type"),
    "no source": ({"ce_source": ""}, _body, "missing_header"),
    "sequence in words": ({"ce_sequence": "seven"}, _body, "bad_header"),
    "sequence below 0": ({"ce_sequence": "-1"}, _body, "bad_header"),
    "not JSON": ({}, lambda: b"{", "unreadable_body"),
    "nothing": ({}, lambda: b"", "unreadable_body"),
    "not UTF-8": ({}, lambda: b'{"ts": "\xff"}', "unreadable_body"),
    "a list": ({}, lambda: b"[]", "unreadable_body"),
    "deep": ({}, lambda: b"[" * 100_000, "unreadable_body"),
    "no ts": ({}, lambda: _without("ts"), "missing_value"),
    "no GPU": ({}, lambda: _without("gpu_uuid"), "missing_value"),
    "unequal columns": ({}, lambda: _body(ts=[START_US] * 2, gpu_uuid=["a", "b", "c"]), "unequal_columns"),
    "a word for a number": ({}, lambda: _body(energy_millijoules="much"), "bad_value"),
    "another world": ({}, lambda: _body(synthetic=True), "wrong_world"),
    "too many rows": ({}, lambda: _body(ts=[START_US] * (MAX_ROWS + 1)), "too_large"),
    "torn Arrow": (
        {"content-type": ARROW_TYPE},
        lambda: b"\xff\xff\xff\xff\x10\x00\x00\x00",
        "unreadable_body",
    ),
    "Arrow that is JSON": ({"content-type": ARROW_TYPE}, _body, "unreadable_body"),
}
"""Headers over the right ones, the body, and the reason it must be rejected for."""


def poison(rig: Rig, kind: str, number: int) -> None:
    headers, body, reason = KINDS[kind]
    host = ("d0", "s0")[number % 2]  # beside rows that must not suffer
    good = headers_of(GPU_SAMPLES, "poison@bad/main", f"epoch-{number}", 0)
    rig.poison(Record(key=host, headers=good | headers, body=body()), host, reason)


def poison_once(rig: Rig, random: Random) -> None:
    poison(rig, random.choice(list(KINDS)), random.randrange(2**30))


def strike(rig: Rig, random: Random) -> None:
    kinds = list(KINDS)
    random.shuffle(kinds)
    for number, kind in enumerate(kinds):
        poison(rig, kind, number)


FAULTS = [Fault(name="poison", strike=strike)]
