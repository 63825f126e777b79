"""Runs the tests that are written inside rule files: rows in, transitions out, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from alerts.duration import format_duration, parse_duration
from alerts.evaluator import Evaluator
from alerts.rule import Expected, Rule, RuleTest
from alerts.ruleset import RuleSet
from alerts.watcher import Draft, Tick, Watcher
from contract.bus import Message
from contract.codec import encode_columns, headers_of
from contract.errors import ContractError
from contract.streams import STREAMS
from contract.testing import START_US, plain_value

SECOND_US = 1_000_000
QUIET_US = 60 * SECOND_US
"""A test runs this much longer than its last row or expectation, unless it says `until`."""

MAX_MESSAGES = 100_000
_PLACES = frozenset({"at", "from", "to", "every", "on", "late", "ahead"})


@dataclass(frozen=True, slots=True)
class RuleTestResult:
    """What became of one test; no problem means that it passed."""

    rule: str
    test: str
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.problems


def run_rule_tests(ruleset: RuleSet) -> list[RuleTestResult]:
    """Run every test of every rule, each against that rule alone.

    A row says when it arrives (`at`, or `from`, `to`, `every`), optionally its stream (`on`), how much `late` it
    arrives or how far its clock is `ahead`; everything else is a column. Columns that must be there and are not
    written are filled in.
    """
    return [_run(rule, test) for rule in ruleset.rules for test in rule.tests]


def _run(rule: Rule, test: RuleTest) -> RuleTestResult:
    try:
        messages = _messages(rule, test)
    except (ValueError, ContractError) as error:
        return RuleTestResult(rule.rule, test.test, (f"a row cannot be used: {error}",))
    last = max([m.received_us - START_US for m in messages] + [e.at for e in test.expect], default=0)
    end = START_US + (test.until if test.until is not None else last + QUIET_US)
    values = rule.model_dump(by_alias=True, exclude_none=True, exclude={"tests"})
    evaluator = Evaluator(RuleSet([rule], [values | {"kind": rule.kind}]), "test-hall")
    drafts: list[Draft] = []
    at = 0
    # How rows are cut into batches changes nothing, so a kind that ignores ticks needs one batch only.
    ticks = any(type(watcher).on_tick is not Watcher.on_tick for watcher in evaluator.watchers)
    for now in range(START_US, end + 1, SECOND_US) if ticks else [end]:
        first = at
        while at < len(messages) and messages[at].received_us <= now:
            at += 1
        drafts += evaluator.apply(messages[first:at], Tick(now_us=now, behind={}))
    return RuleTestResult(rule.rule, test.test, tuple(_compare(test, drafts)))


def _compare(test: RuleTest, drafts: list[Draft]) -> Iterator[str]:
    found = [_found(draft) for draft in drafts]
    wanted = [_wanted(expected) for expected in test.expect]
    for line in wanted:
        if line in found:
            found.remove(line)
        else:
            yield f"expected, not seen: {line}"
    for line in found:
        yield f"seen, not expected: {line}"


def _found(draft: Draft) -> str:
    at = format_duration(max(0, draft.ts_us - START_US))
    return _line(at, draft.transition, draft.entity, draft.end_reason)


def _wanted(expected: Expected) -> str:
    transition = "firing" if expected.firing is not None else "ended"
    return _line(
        format_duration(expected.at), transition, expected.firing or expected.ended or "", expected.reason
    )


def _line(at: str, transition: str, entity: str, reason: str | None) -> str:
    return f"at {at} {transition} {entity}" + (f" ({reason})" if reason else "")


def _messages(rule: Rule, test: RuleTest) -> list[Message]:
    rows: list[tuple[int, _Row]] = []
    for values in test.rows:
        row = _Row(rule, values)
        rows += [(arrives_us, row) for arrives_us in _arrivals(values)]
        if len(rows) > MAX_MESSAGES:
            raise ValueError(f"more than {MAX_MESSAGES} rows")
    rows.sort(key=lambda pair: pair[0])
    return [row.message(arrives_us, sequence) for sequence, (arrives_us, row) in enumerate(rows)]


def _arrivals(row: Mapping[str, Any]) -> Iterator[int]:
    if "at" in row:
        yield START_US + parse_duration(row["at"])
    else:
        first, last, every = (parse_duration(row.get(key)) for key in ("from", "to", "every"))
        yield from range(START_US + first, START_US + last + 1, max(every, 1_000))


class _Row:
    """A row of a test, ready to be sent at any time."""

    def __init__(self, rule: Rule, row: Mapping[str, Any]) -> None:
        name = str(row.get("on") or rule.on or "collector_status")
        if name not in STREAMS:
            raise ValueError(f"there is no stream {name!r}")
        self._stream = STREAMS[name]
        self._shift_us = parse_duration(row.get("ahead", "0s")) - parse_duration(row.get("late", "0s"))
        columns = {key: value for key, value in row.items() if key not in _PLACES}
        self._values = {c.name: plain_value(c, 1) for c in self._stream.columns if c.required} | columns
        self._stream.table({name: [value] for name, value in self._values.items()})  # says what is wrong
        self._key = str(self._values[self._stream.key])

    def message(self, arrives_us: int, sequence: int) -> Message:
        values = self._values | {"ts": arrives_us + self._shift_us}
        return Message(
            topic=self._stream.topic,
            partition=self._stream.partition_of(self._key),
            offset=sequence,
            received_us=arrives_us,
            key=self._key,
            headers=headers_of(self._stream, "test", "test", sequence),
            body=encode_columns(self._stream, {name: [value] for name, value in values.items()}),
        )
