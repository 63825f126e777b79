"""Rule files: YAML texts checked into a rule set, with every mistake named by file, line and rule."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from alerts.expression import Expression, checker
from alerts.rule import Rule
from alerts.watcher import KINDS
from contract.errors import ConfigError
from contract.streams import STREAMS
from contract.yamltext import Document, Place, dotted

SHIPPED = Path(__file__).parent / "rules"

MAX_FILE_BYTES = 1_048_576


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule as written, and where: the `at`-th of a document."""

    document: Document
    at: int
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.values.get("rule", "(unnamed)"))

    @property
    def where(self) -> str:
        """Return file and line."""
        return f"{self.document.where}:{self.document.line((self.at,))}"

    def problem(self, field: Place, message: str) -> str:
        line = self.document.line((self.at, *field))
        words = f"{dotted(field)}: {message}" if field else message
        return f"{self.document.where}:{line}: rule {self.name}: {words}"


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
        journal = Document("(journal)")
        found = [RuleText(journal, at, value) for at, value in enumerate(values)]
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
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        problems.append(f"{file}: cannot be read: {error}")
        return []
    if len(content) > MAX_FILE_BYTES:
        problems.append(f"{file}: larger than {MAX_FILE_BYTES} bytes")
        return []
    document = Document(str(file))
    values = document.load(content)
    if not isinstance(values, list | None):
        document.complain((), "a rule file is a list; begin each rule with `- rule: name`")
    texts = []
    for at, value in enumerate(values if isinstance(values, list) else ()):
        if isinstance(value, dict):
            texts.append(RuleText(document, at, value))
        else:
            document.complain((at,), "a rule is a mapping that begins with `rule: name`")
    problems.extend(document.problems())
    return texts


def _build(texts: Sequence[RuleText], problems: list[str]) -> list[Rule]:
    kinds, rules, seen = KINDS.all(), [], dict[str, RuleText]()
    for text in texts:
        kind = kinds.get(str(text.values.get("kind", "threshold")))
        if kind is None:
            problems.append(text.problem(("kind",), f"one of {', '.join(kinds)} is expected"))
            continue
        first = seen.setdefault(text.name, text)
        if first is not text:
            problems.append(text.problem(("rule",), f"also in {first.where}; a name is used once"))
        try:
            rule = kind.model.model_validate(text.values)
        except ValidationError as error:
            problems.extend(_explain(text, error))
            continue
        problems.extend(text.problem((field,), message) for field, message in rule.problems())
        rules.append(rule)
    return rules


def _explain(text: RuleText, error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        field = tuple(part for part in problem["loc"] if not isinstance(part, str) or "[" not in part)
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = "this field is not known"
        elif problem["type"] == "missing":
            message = "this field is missing"
        yield text.problem(field, message)
