"""Reading CBOR (RFC 8949) that a stranger wrote: only what evidence is made of, and all of it bounded.

A general decoder takes what this one must refuse: a key given twice, lengths left open, a small text that unfolds into
millions of items, bytes behind the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from contract.errors import CollectError

MAX_BYTES = 1_048_576
MAX_DEPTH = 8
MAX_ITEMS = 2_048
"""Items in all. A Nitro document with every register and eight certificates has less than a hundred."""

_EXTENDED = {24: 1, 25: 2, 26: 4, 27: 8}
_SIMPLE = {20: False, 21: True, 22: None}
_KEYS = (int, str, bytes)


@dataclass(frozen=True, slots=True)
class Tagged:
    """A value with a tag, which is kept and not interpreted."""

    tag: int
    value: Any


def read_cbor(data: bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the one value that `data` holds: int, bytes, str, bool, None, list, dict or Tagged.

    Raises CollectError: too_large; unreadable for a key given twice, an open length, a float or another simple value,
    bytes behind the end, and more than MAX_DEPTH levels or MAX_ITEMS items.
    """
    if len(data) > max_bytes:
        raise CollectError("too_large", f"CBOR of {len(data)} bytes; more than {max_bytes} is never evidence")
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        reader.refuse(f"{len(data) - reader.at} bytes behind the end")
    return value


class _Reader:
    """Walks through the bytes once; never takes more than there are."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._size = len(data)
        self._items = 0
        self.at = 0

    def value(self, depth: int) -> Any:
        self._items += 1
        if self._items > MAX_ITEMS:
            self.refuse(f"more than {MAX_ITEMS} items")
        if depth > MAX_DEPTH:
            self.refuse(f"nested more than {MAX_DEPTH} deep")
        if self.at == self._size:
            self.refuse("cut off: a value belongs here")
        first = self._data[self.at]
        self.at += 1
        kind, short = first >> 5, first & 31
        if kind == 7:
            if short not in _SIMPLE:
                self.refuse("a float, a break or a value without a meaning")
            return _SIMPLE[short]
        argument = short if short < 24 else self._argument(short)
        if kind == 0:
            return argument
        if kind == 2:
            return self._take(argument)
        return self._compound(kind, argument, depth)

    def _compound(self, kind: int, argument: int, depth: int) -> Any:
        match kind:
            case 1:
                return -1 - argument
            case 3:
                return self._text(argument)
            case 4:
                return self._list(argument, depth)
            case 5:
                return self._map(argument, depth)
        return Tagged(argument, self.value(depth + 1))

    def refuse(self, words: str) -> NoReturn:
        raise CollectError("unreadable", f"CBOR, byte {self.at}: {words}")

    def _argument(self, short: int) -> int:
        if short not in _EXTENDED:
            self.refuse("an open length")
        return int.from_bytes(self._take(_EXTENDED[short]), "big")

    def _take(self, count: int) -> bytes:
        end = self.at + count
        if end > self._size:
            self.refuse(f"cut off: {count} bytes belong here, there are {self._size - self.at}")
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def _text(self, count: int) -> str:
        try:
            return self._take(count).decode()
        except UnicodeDecodeError:
            self.refuse("text that is not UTF-8")

    def _list(self, count: int, depth: int) -> list[Any]:
        self._expect(count)
        return [self.value(depth + 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        self._expect(2 * count)
        found: dict[Any, Any] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            if not isinstance(key, _KEYS) or isinstance(key, bool):
                self.refuse("a key that is no number and no text")
            if key in found:
                self.refuse(f"the key {str(key)[:80]!r} is there twice")
            found[key] = self.value(depth + 1)
        return found

    def _expect(self, items: int) -> None:
        """Refuse a length that the bytes left cannot fill: an item is at least one byte."""
        if items > self._size - self.at:
            self.refuse(f"cut off: {items} items belong here, there are {self._size - self.at} bytes")


def write_head(kind: int, argument: int) -> bytes:
    """Return the first bytes of an item of a major type, in the shortest form."""
    if argument < 24:
        return bytes([kind << 5 | argument])
    for short, count in _EXTENDED.items():
        if argument < 1 << 8 * count:
            return bytes([kind << 5 | short]) + argument.to_bytes(count, "big")
    raise ValueError("CBOR has no such length")


def write_bytes(value: bytes) -> bytes:
    """Return a byte string as an item."""
    return write_head(2, len(value)) + value
