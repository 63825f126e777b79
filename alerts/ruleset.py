"""Rule files: YAML texts checked into a rule set, with every mistake named by file, line and rule."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import ValidationError

from alerts.expression import Expression, checker
from alerts.rule import Rule
from alerts.watcher import KINDS
from contract.errors import ConfigError
from contract.streams import STREAMS

SHIPPED = Path(__file__).parent / "rules"

MAX_FILE_BYTES = 1_048_576
MAX_NODES = 100_000
"""In one file: aliases in YAML can otherwise grow without bound."""


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule as written, and where: `lines` by field, 0-based path through nested values."""

    file: str
    line: int
    values: Mapping[str, Any]
    lines: Mapping[tuple[str | int, ...], int]

    @property
    def name(self) -> str:
        return str(self.values.get("rule", "(unnamed)"))

    def at(self, field: Sequence[str | int]) -> int:
        """Return the line of the innermost part of `field` that was written."""
        for length in range(len(field), 0, -1):
            if tuple(field[:length]) in self.lines:
                return self.lines[tuple(field[:length])]
        return self.line

    def problem(self, field: Sequence[str | int], message: str) -> str:
        where = ".".join(str(part) for part in field)
        return f"{self.file}:{self.at(field)}: rule {self.name}: {where + ': ' if where else ''}{message}"


class RuleSet:
    """Rules that passed every check, in the order of their files."""

    def __init__(self, rules: Sequence[Rule], texts: Sequence[Mapping[str, Any]]) -> None:
        self.rules = tuple(rules)
        self.texts = orjson.dumps(
            [{k: v for k, v in text.items() if k != "tests"} for text in texts]
        ).decode()
        """What `from_texts` reads back: the journal keeps it, so that history can be run again."""
        self.digest = hashlib.sha256(self.texts.encode()).hexdigest()

    @classmethod
    def from_texts(cls, texts: str) -> RuleSet:
        """Return the rule set that had these texts; raise ConfigError where they are no longer valid."""
        values: list[dict[str, Any]] = orjson.loads(texts)
        problems: list[str] = []
        found = [RuleText("(journal)", at, value, {}) for at, value in enumerate(values)]
        rules = _build(found, problems)
        _raise(problems)
        return cls(rules, values)

    def expressions(self, stream: str) -> list[Expression]:
        """Return every condition on a stream, ready to run."""
        return [
            checker().check(STREAMS[stream], text)
            for rule in self.rules
            if rule.on == stream
            for text in rule.conditions().values()
        ]


def check_rules(paths: Sequence[Path] = ()) -> RuleSet:
    """Read rule files and folders of `*.yaml`; none = the shipped rules.

    Raises ConfigError that lists everything wrong in all of them.
    """
    problems: list[str] = []
    texts = [text for file in _files(paths or (SHIPPED,), problems) for text in _read(file, problems)]
    rules = _build(texts, problems)
    if not texts and not problems:
        problems.append(f"there is no rule in {', '.join(str(path) for path in paths)}")
    _raise(problems)
    return RuleSet(rules, [text.values for text in texts])


def _raise(problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError("invalid", "\n".join(problems))


def _files(paths: Iterable[Path], problems: list[str]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob("*.yaml"))
        elif path.is_file():
            yield path
        else:
            problems.append(f"{path}: there is no such rule file or folder")


def _read(file: Path, problems: list[str]) -> list[RuleText]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            problems.append(f"{file}: larger than {MAX_FILE_BYTES} bytes")
            return []
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{file}: cannot be read: {error}")
        return []
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.append(f"{file}:{mark.line + 1 if mark else 1}: not YAML: {error.problem}")
        return []
    except (yaml.YAMLError, RecursionError) as error:
        problems.append(f"{file}: not YAML: {error}")
        return []
    if root is None:
        return []
    if not isinstance(root, yaml.SequenceNode):
        problems.append(f"{file}:1: a rule file is a list; begin each rule with `- rule: name`")
        return []
    return [text for node in root.value if (text := _Reader(file, problems).rule(node)) is not None]


class _Reader:
    """Turns YAML nodes of one rule into plain values and remembers their lines."""

    def __init__(self, file: Path, problems: list[str]) -> None:
        self._file = file
        self._problems = problems
        self._lines: dict[tuple[str | int, ...], int] = {}
        self._count = 0
        self._constructor = yaml.constructor.SafeConstructor()

    def rule(self, node: yaml.Node) -> RuleText | None:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.MappingNode):
            self._problems.append(f"{self._file}:{line}: a rule is a mapping that begins with `rule: name`")
            return None
        values = self._value(node, ())
        return RuleText(str(self._file), line, values, self._lines)

    def _value(self, node: yaml.Node, path: tuple[str | int, ...]) -> Any:
        self._lines.setdefault(path, node.start_mark.line + 1)
        self._count += 1
        if self._count > MAX_NODES or len(path) > 10:
            self._complain(node, "too many or too deep values in one rule")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, at)) for at, item in enumerate(node.value)]
        if node.tag == "tag:yaml.org,2002:timestamp":
            return node.value
        try:
            value = self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            self._complain(node, f"not a plain value: {error}")
            return None
        return value if isinstance(value, str | int | float | bool | None) else node.value

    def _mapping(self, node: yaml.MappingNode, path: tuple[str | int, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in values:
                self._complain(key_node, f"{key!r} is written twice")
            self._lines[(*path, key)] = key_node.start_mark.line + 1
            values[key] = self._value(value_node, (*path, key))
        return values

    def _complain(self, node: yaml.Node, message: str) -> None:
        problem = f"{self._file}:{node.start_mark.line + 1}: {message}"
        if problem not in self._problems:
            self._problems.append(problem)


def _build(texts: Sequence[RuleText], problems: list[str]) -> list[Rule]:
    kinds, rules, seen = KINDS.all(), [], dict[str, RuleText]()
    for text in texts:
        kind = kinds.get(str(text.values.get("kind", "threshold")))
        if kind is None:
            problems.append(text.problem(["kind"], f"one of {', '.join(kinds)} is expected"))
            continue
        first = seen.setdefault(text.name, text)
        if first is not text:
            problems.append(text.problem(["rule"], f"also in {first.file}:{first.line}; a name is used once"))
        try:
            rule = kind.model.model_validate(text.values)
        except ValidationError as error:
            problems.extend(_explain(text, error))
            continue
        problems.extend(text.problem([field], message) for field, message in rule.problems())
        rules.append(rule)
    return rules


def _explain(text: RuleText, error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        field = [part for part in problem["loc"] if not isinstance(part, str) or "[" not in part]
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = "this field is not known"
        elif problem["type"] == "missing":
            message = "this field is missing"
        yield text.problem(field, message)
