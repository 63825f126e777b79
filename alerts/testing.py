"""What the tests of rules and of the engine share: rows as messages, verdicts in words, a receiver on loopback."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import orjson
from typing_extensions import override

from alerts.evaluator import Evaluator
from alerts.ruleset import RuleSet
from alerts.ruletest import SECOND_US
from alerts.watcher import Draft, Tick, Watcher
from contract.bus import Message
from contract.codec import encode_columns, headers_of
from contract.streams import STREAMS
from contract.testing import START_US

Verdict = tuple[float, str, str, str | None]
"""Seconds since START_US, firing or ended, the entity, the reason of an end."""


def rule_text(**fields: Any) -> dict[str, Any]:
    """Return a threshold rule on GPU samples, with fields changed or added; `for_` stands for `for`."""
    text: dict[str, Any] = {
        "rule": "hot",
        "on": "gpu_samples",
        "entity": "gpu_uuid",
        "when": "temperature_margin_celsius <= 0",
        "severity": "major",
        "owner": "hall-operations",
        "summary": "{entity} is hot",
    }
    return text | {name.rstrip("_"): value for name, value in fields.items()}


def absence_text(**fields: Any) -> dict[str, Any]:
    """Return an absence rule with fields added."""
    text = {
        "rule": "gone",
        "kind": "absence",
        "severity": "major",
        "owner": "x",
        "summary": "{entity}: {reason}",
    }
    return text | {name.rstrip("_"): value for name, value in fields.items()}


def rules_of(*texts: dict[str, Any]) -> RuleSet:
    """Check rules given as values; raise ConfigError."""
    return RuleSet.from_texts(orjson.dumps(texts).decode())


class Feed:
    """Makes messages of one source, one row each; offsets and sequences without holes."""

    def __init__(self, source: str = "test@h1/0", *, synthetic: bool = False) -> None:
        self._source = source
        self._synthetic = synthetic
        self._sequences: dict[str, int] = {}
        self._offsets: dict[tuple[str, int], int] = {}

    def row(self, stream: str, at: float, *, ahead: float = 0.0, **columns: Any) -> Message:
        """Return a row that arrives `at` seconds; its own clock is `ahead` of that."""
        declared = STREAMS[stream]
        values = {"ts": START_US + round((at + ahead) * SECOND_US), "synthetic": self._synthetic} | columns
        if "host" in declared.by_name and declared.by_name["host"].required:
            values.setdefault("host", "h1")
        key = str(values.get(declared.key, "k"))
        sequence = self._sequences[stream] = self._sequences.get(stream, -1) + 1
        partition = declared.partition_of(key)
        offset = self._offsets[stream, partition] = self._offsets.get((stream, partition), -1) + 1
        return Message(
            topic=declared.topic,
            partition=partition,
            offset=offset,
            received_us=START_US + round(at * SECOND_US),
            key=key,
            headers=headers_of(declared, self._source, "e1", sequence),
            body=encode_columns(declared, {name: [value] for name, value in values.items()}),
        )

    def gpu(self, at: float, gpu: str = "GPU-1", *, ahead: float = 0.0, **columns: Any) -> Message:
        return self.row("gpu_samples", at, ahead=ahead, gpu_uuid=gpu, **columns)

    def event(self, at: float, code: int, gpu: str | None = "GPU-1", **columns: Any) -> Message:
        values: dict[str, Any] = {"event": "xid", "evidence": "kernel_log", "code": code, "gpu_uuid": gpu}
        return self.row("gpu_events", at, **values | columns)

    def status(self, at: float, source: str, host: str, state: str = "working", **columns: Any) -> Message:
        values: dict[str, Any] = {"source": source, "host": host, "state": state}
        values |= {"collector": "gpu-dcgm", "epoch": "e"}
        return self.row("collector_status", at, **values | columns)

    def asset(self, at: float, asset: str, kind: str, parent: str | None, state: str = "active") -> Message:
        values: dict[str, Any] = {
            "hall": "demo",
            "asset": asset,
            "kind": kind,
            "parent": parent,
            "state": state,
        }
        return self.row("inventory", at, version="v", **values)


def margins(
    feed: Feed, pattern: str, *, gpu: str = "GPU-1", start: float = 0, every: float = 1
) -> list[Message]:
    """Return samples of one GPU by a pattern: `x` hot, `.` cool, `~` between, `?` unknown, ` ` no row."""
    values = {"x": -1.0, ".": 10.0, "~": 2.0, "?": None}
    return [
        feed.gpu(start + at * every, gpu, temperature_margin_celsius=values[sign])
        for at, sign in enumerate(pattern)
        if sign != " "
    ]


_numbers = itertools.count()


def in_order(messages: Iterable[Message]) -> list[Message]:
    """Return messages by arrival, numbered anew: a source numbers what it sends in the order of sending."""
    ordered = sorted(messages, key=lambda message: message.received_us)
    return [
        message._replace(offset=number, headers={**message.headers, "ce_sequence": str(number)})
        for message, number in zip(ordered, _numbers, strict=False)
    ]


def judge(
    evaluator: Evaluator,
    messages: Iterable[Message],
    *,
    until: float = 0,
    every: float = 1,
    ticks: bool = False,
) -> list[Draft]:
    """Give messages in order of arrival with a tick each `every` seconds, at least `until`.

    Rules that ignore ticks get none unless `ticks`.
    """
    waiting = in_order(messages)
    last = max([until] + [(m.received_us - START_US) / SECOND_US for m in waiting])
    drafts: list[Draft] = []
    if not ticks and not any(type(watcher).on_tick is not Watcher.on_tick for watcher in evaluator.watchers):
        # How rows are cut into batches changes nothing: two are as good as many.
        half = len(waiting) // 2
        drafts += evaluator.apply(waiting[:half], None) + evaluator.apply(waiting[half:], None)
        waiting = []
    for number in range(int(last / every) + 2):
        now_us = START_US + round(number * every * SECOND_US)
        due = [message for message in waiting if message.received_us <= now_us]
        waiting = waiting[len(due) :]
        drafts += evaluator.apply(due, Tick(now_us=now_us, behind={}))
    return drafts


def verdicts(drafts: Sequence[Draft]) -> list[Verdict]:
    """Return what was decided, in words."""
    return [((d.ts_us - START_US) / SECOND_US, d.transition, d.entity, d.end_reason) for d in drafts]


class Receiver:
    """An HTTP receiver on loopback that keeps what it was sent and answers as told."""

    def __init__(self, port: int = 0) -> None:
        self.bodies: list[Any] = []
        self.paths: list[str] = []
        self.status = 200
        self.delay_seconds = 0.0
        self.answer: bytes = b"{}"
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                body = self.rfile.read(size)
                if len(body) < size:
                    return  # the one who spoke is cut off
                time.sleep(receiver.delay_seconds)
                if receiver.status < 300:
                    receiver.bodies.append(orjson.loads(body))
                receiver.paths.append(self.path)
                try:
                    self.send_response(receiver.status)
                    self.send_header("content-length", str(len(receiver.answer)))
                    self.end_headers()
                    self.wfile.write(receiver.answer)
                except ConnectionError:
                    self.close_connection = True  # the one who asked is dead

            @override
            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """Every alert of every post, but the watchdog."""
        found = [alert for body in self.bodies for alert in body]
        return [alert for alert in found if alert["labels"]["alertname"] != "HallwatchWatchdog"]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
