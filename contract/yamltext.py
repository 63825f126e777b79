"""YAML as people write it: its values, the line of each, and everything wrong in it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from contract.errors import ConfigError

Place = tuple[str | int, ...]
"""Keys and positions from the top of the text to a value."""

_DEEPEST = 16
_MOST_ERRORS = 20
_NULL = "tag:yaml.org,2002:null"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


def as_text(node: yaml.ScalarNode) -> Any:
    """Take a value for the text it is.

    YAML alone would read the PCI address 00000000:53:00.0 as a number in base sixty.
    """
    return None if node.style is None and node.tag == _NULL else node.value


def as_value(node: yaml.ScalarNode) -> Any:
    """Take a value for a number or truth where it is written as one, for text otherwise; a date is text."""
    if node.tag == _TIMESTAMP:
        return node.value
    value = yaml.constructor.SafeConstructor().construct_object(node)
    return value if isinstance(value, str | int | float | bool | None) else node.value


class Document:
    """One YAML text. An alias is refused, so that no small text becomes a large one."""

    def __init__(self, where: str, scalar: Callable[[yaml.ScalarNode], Any] = as_value) -> None:
        """`where`: its name in messages; `scalar`: what a plain value is taken for."""
        self.where = where
        self._scalar = scalar
        self._lines: dict[Place, int] = {}
        self._errors: list[tuple[int, str]] = []
        self._nodes: set[int] = set()

    def load(self, content: bytes) -> Any:
        """Return its values, None where it is empty or not YAML; what is wrong is kept."""
        loader = yaml.CSafeLoader(content)
        try:
            node = loader.get_single_node()
        except (yaml.YAMLError, UnicodeError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            self._errors.append((mark.line + 1 if mark else 1, f"not YAML: {_problem(error)}"))
            return None
        finally:
            loader.dispose()
        return None if node is None else self._value(node, ())

    def complain(self, place: Place, message: str) -> None:
        """Keep a mistake in the value at a place."""
        self._errors.append((self.line(place), f"{dotted(place)}: {message}" if place else message))

    def line(self, place: Place) -> int:
        """Return the line of a value, or of what it is missing from."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)

    def problems(self) -> list[str]:
        """Return what is wrong, by line, each as `file:line: words`."""
        lines = [f"{self.where}:{line}: {message}" for line, message in sorted(self._errors)[:_MOST_ERRORS]]
        if len(self._errors) > _MOST_ERRORS:
            lines.append(f"{self.where}: and {len(self._errors) - _MOST_ERRORS} more")
        return lines

    def stop_if_wrong(self) -> None:
        """Raise ConfigError(invalid) with all that is wrong."""
        if self._errors:
            raise ConfigError("invalid", "\n".join(self.problems()))

    def _value(self, node: yaml.Node, place: Place) -> Any:
        self._lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._plain(node, place)
        if id(node) in self._nodes:
            self.complain(place, "an alias; write the values out")
            return None
        self._nodes.add(id(node))
        if len(place) > _DEEPEST:
            self.complain(place, "nested too deeply")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        return [self._value(item, (*place, at)) for at, item in enumerate(node.value)]

    def _plain(self, node: yaml.ScalarNode, place: Place) -> Any:
        try:
            return self._scalar(node)
        except (yaml.YAMLError, ValueError) as error:
            self.complain(place, f"not a plain value: {_problem(error)}")
            return None

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._errors.append((key.start_mark.line + 1, "a key that is no text"))
                continue
            inner = (*place, key.value)
            if key.value in values:
                line = self._lines[inner]
                self._errors.append(
                    (key.start_mark.line + 1, f"{dotted(inner)}: again, first on line {line}")
                )
                continue
            self._lines[inner] = key.start_mark.line + 1
            values[key.value] = self._value(item, inner)
        return values


def dotted(place: Place) -> str:
    """Return a place as people write it."""
    return ".".join(str(part) for part in place)


def _problem(error: Exception) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__)
