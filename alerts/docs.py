"""`docs/rules.md` and `docs/notifiers.md`, made from the shipped rules, the plug-ins and the models that check them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from alerts.duration import format_duration
from alerts.notifier import NOTIFIERS
from alerts.rule import Expected, Rule
from alerts.ruleset import check_rules
from alerts.ruletest import QUIET_US
from alerts.watcher import KINDS
from contract.docs import config_table

EXAMPLE = """\
- rule: gpu-memory-hot
  on: gpu_samples
  entity: gpu_uuid
  when: memory_temperature_celsius >= 95
  clear: memory_temperature_celsius < 90   # between the two nothing changes: noise ends no alert
  for: 1m
  severity: minor
  owner: hall-operations
  summary: "the memory of {gpu_uuid} on {host} is at {memory_temperature_celsius} °C"
  tests:
    - test: a minute of heat fires, cooling ends it
      rows:
        - {from: 0s, to: 70s, every: 1s, gpu_uuid: GPU-1, memory_temperature_celsius: 96}
        - {from: 71s, to: 80s, every: 1s, gpu_uuid: GPU-1, memory_temperature_celsius: 85}
      expect:
        - {at: 60s, firing: GPU-1}
        - {at: 71s, ended: GPU-1, reason: cleared}
    - test: a GPU that does not report its memory's temperature is never judged
      rows:
        - {from: 0s, to: 120s, every: 1s, gpu_uuid: GPU-1, temperature_celsius: 95}
      expect: []
"""

_INTRODUCTION = """\
Generated from `alerts/rules/` and `alerts/kinds/` by `make docs`. A rule watches one stream, entity by entity, and
raises one alert per entity; each change of an alert is a row of [`alerts`](streams.md#alerts). What is open now:
`hallwatch alerts`. What to do about it: the runbook behind the rule's name.

An alert ends for one of four reasons, and loss of telemetry is none of them: `cleared`, the opposite was seen;
`superseded`, what it is about was retired in the inventory, or the rule is no more; `expired`, nothing more came for
as long as the rule says; `operator`, a person's decision, which nothing gives yet.
"""

_FAILING = """\
One more alert is about the rules themselves and in no file: [rule-failing](runbooks/rule-failing.md), severity major.
"""

_WRITING = """\
A rule file is a YAML list. `hallwatch rules check FILE` tells every mistake with its line, `hallwatch rules test FILE`
runs the tests in it. Name files or folders under `[engine] rules` to use them; they take the place of the shipped
ones, so name those, too, where you want both: the folder `alerts/rules` of the checkout.
"""

_CONDITIONS = """\
A condition (`when`, `clear`) is a DuckDB expression over one row: the columns of the [stream](streams.md), `_received`,
constants, operators and functions that always answer alike. So it pastes into `hallwatch sql` after a WHERE, and back:
try it on yesterday before it wakes anyone. It is true, false or unknown: unknown, because a column is null or the
expression fails on the row, neither fires nor ends anything. Durations are written `45s`, `1m30s`, `24h`, `7d`. Every
rule has a runbook, `docs/runbooks/{rule}.md`, with Overview, Symptoms, Procedure and Verify.
"""

_TESTS = """\
A test is rows in, transitions out, and nothing else may happen. Each runs against its rule alone, on a clock that
begins at 0s and ends {quiet} after the last row or expectation, or at `until`.

| field | meaning |
|---|---|
| `test` | What it shows, as a sentence. |
| `rows` | What arrives; see below. |
| `until` | When the test ends, where the passing of time is the point. |
| `expect` | Transitions: `at`, and `firing: entity` or `ended: entity` with its `reason`: {reasons}. `[]` = silence. |

| in a row | meaning |
|---|---|
| `at` | When it arrives; or, for many alike, `from`, `to` and `every`. |
| `on` | Its stream, where that is not the rule's: `inventory`, so that something is expected. |
| `late`, `ahead` | How much later than its `ts` it arrives; how far its clock is ahead. |
| everything else | A column. One that must be there and is not written is filled in; every other is null. |

Write at least one test that fires and one that must not: the short peak, the restart, the GPU that does not report it.
"""


_NOTIFIERS = """\
Generated from `alerts/notify/` by `make docs`. A notifier tells one receiver of every alert that begins or ends, in
their order, and repeats what was not taken for a day. A configuration names as many as there are receivers, each in a
table of its own; without one the engine prints:

```toml
[[engine.notifiers]]
notifier = "alertmanager"
url = "http://127.0.0.1:9093"
severities = ["major", "critical"]
```

Who was told what, when, and what they answered is in [`notifications`](streams.md#notifications). To add one, put a file
into `alerts/notify/`: a configuration, and a class under `@notifier` with the methods of `alerts.notifier.Notifier`.
"""


def notifiers_page() -> str:
    """Return docs/notifiers.md."""
    lines = ["# Notifiers", "", _NOTIFIERS.rstrip()]
    for name, plugin in NOTIFIERS.all().items():
        lines += ["", f"## {name}", "", inspect.cleandoc(plugin.make.__doc__ or ""), ""]
        lines += config_table(plugin.config, without="notifier")
    return "\n".join(lines) + "\n"


def rules_page() -> str:
    """Return docs/rules.md."""
    reasons = ", ".join(f"`{reason}`" for reason in _choices(Expected.model_fields["reason"].annotation))
    tests = _TESTS.format(quiet=format_duration(QUIET_US), reasons=reasons)
    lines = [
        "# Rules",
        "",
        _INTRODUCTION,
        "## Shipped rules",
        "",
        *_shipped(check_rules().rules),
        "",
        _FAILING,
        "## Write a rule",
        "",
        _WRITING,
        "```yaml",
        f"{EXAMPLE}```",
        "",
        _CONDITIONS,
        "### Fields of every kind",
        "",
        *_fields(Rule, [name for name in Rule.model_fields if name != "tests"]),
    ]
    for name, kind in KINDS.all().items():
        own = [field for field in kind.model.model_fields if field in kind.model.__annotations__]
        doc = inspect.cleandoc(kind.model.__doc__ or "")
        lines += ["", f"### kind: {name}", "", doc, "", *_fields(kind.model, own)]
    lines += ["", "### Tests in the file", "", tests.rstrip()]
    return "\n".join(lines) + "\n"


def _shipped(rules: Iterable[Rule]) -> Iterator[str]:
    yield "| rule | kind | stream | entity | fires and ends | severity | owner | summary |"
    yield "|---|---|---|---|---|---|---|---|"
    for rule in rules:
        cells = (
            f"[{rule.rule}]({rule.page.removeprefix('docs/')})",
            rule.kind,
            f"[{rule.streams()[0]}](streams.md#{rule.streams()[0]})",
            ", ".join(rule.columns),
            "<br>".join(f"{name}: `{value}`" for name, value in _settings(rule)),
            rule.severity if rule.notify else f"{rule.severity}, nobody is told",
            rule.owner,
            rule.summary,
        )
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _settings(rule: Rule) -> Iterator[tuple[str, str]]:
    """Yield what a rule sets of its kind's own fields, as its file writes it."""
    for name, field in type(rule).model_fields.items():
        value = getattr(rule, name)
        if name not in Rule.model_fields and value != field.default:
            yield field.alias or name, _written(name, value)


def _fields(model: type[Rule], names: Iterable[str]) -> Iterator[str]:
    yield "| field | default | meaning |"
    yield "|---|---|---|"
    for name in names:
        field = model.model_fields[name]
        default = "required" if field.is_required() else _default(name, field)
        choices = _choices(field.annotation)
        one_of = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
        yield f"| `{field.alias or name}` | {default} | {field.description}{one_of} |"


def _default(name: str, field: FieldInfo) -> str:
    text = _written(name, field.default)
    return f"`{text}`" if text else "none"


def _written(name: str, value: Any) -> str:
    """Write a value as a rule file does, on one line; what is not there is empty."""
    if value is None or value == ():
        return ""
    if name.endswith("_us"):
        return format_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, tuple) else " ".join(str(value).split())


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the words of a Literal, also of one that may be left out."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return next((found for part in get_args(annotation) if (found := _choices(part))), ())
