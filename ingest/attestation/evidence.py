"""What is handed in: the evidence, and what came with it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from contract.errors import CollectError

MAX_EVIDENCE_BYTES = 4_194_304
MAX_ATTACHED = 32
_END_OF_TIME_US = 2**62
"""Far beyond any time, and half of what a column can hold."""

_ASCII_FORMS = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+/=\r\n\t ")
_KEYS = frozenset({"evidence", "attached", "kind", "host", "taken_us"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One piece of evidence. Nothing in it is trusted."""

    body: bytes = field(repr=False)
    """Binary, whatever text it was written as."""
    name: str = ""
    attached: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """By file name: certificates, revocation lists, policies and endorsements that came with it."""
    taken_us: int | None = None
    """When it was taken at the latest, as its carrier says or its file: for kinds that do not say it themselves."""
    kind: str | None = None
    """What its carrier says it is."""
    host: str | None = None
    """Where its carrier says it is from."""
    digest: str
    """SHA-256 of what was handed in, hexadecimal."""


def read_evidence(
    raw: bytes, name: str = "", attached: Mapping[str, bytes] | None = None, taken_us: int | None = None
) -> Evidence:
    """Take evidence as it is found: binary, hexadecimal, base64, or a JSON parcel.

    A parcel is `{"evidence": base64, "attached": {name: base64}}`, optionally with `kind`, `host` and `taken_us`, which
    is otherwise the one that is given. Raises CollectError: too_large; unreadable for what looks like a parcel and is
    none.
    """
    if len(raw) > MAX_EVIDENCE_BYTES:
        raise CollectError("too_large", f"{len(raw)} bytes; more than {MAX_EVIDENCE_BYTES} is never evidence")
    digest = hashlib.sha256(raw).hexdigest()
    parcel = _parcel(raw)
    if parcel is None:
        return Evidence(body=plain(raw), name=name, attached=attached or {}, taken_us=taken_us, digest=digest)
    bodies = {key: _decode(text) for key, text in parcel.get("attached", {}).items()}
    kind, host, taken = parcel.get("kind"), parcel.get("host"), parcel.get("taken_us")
    if not all(isinstance(text, str | None) for text in (kind, host)) or not _is_time(taken):
        raise CollectError("unreadable", "a parcel's kind and host are texts, its taken_us is microseconds")
    return Evidence(
        body=plain(_decode(parcel["evidence"])),
        name=name,
        attached={**(attached or {}), **bodies},
        taken_us=taken_us if taken is None else taken,
        kind=kind,
        host=host,
        digest=digest,
    )


def plain(raw: bytes) -> bytes:
    """Return the bytes that a hexadecimal or base64 text stands for; anything else as it is."""
    if not raw or not _ASCII_FORMS.issuperset(raw):
        return raw
    text = b"".join(raw.split())
    for decode in (binascii.unhexlify, lambda one: base64.b64decode(one, validate=True)):
        try:
            return decode(text)
        except ValueError:
            continue
    return raw


def _is_time(taken: object) -> bool:
    """Tell whether it is a time, or none; JSON's `true` is an int to Python."""
    return taken is None or (type(taken) is int and 0 <= taken < _END_OF_TIME_US)


def _parcel(raw: bytes) -> dict[str, Any] | None:
    if raw.lstrip()[:1] != b"{":
        return None
    try:
        values = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(values, dict) or "evidence" not in values:
        return None
    attached = values.get("attached", {})
    if not values.keys() <= _KEYS or not isinstance(attached, dict) or len(attached) > MAX_ATTACHED:
        raise CollectError(
            "unreadable", f"a parcel holds {sorted(_KEYS)} and at most {MAX_ATTACHED} attachments"
        )
    return values


def _decode(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except ValueError:
        pass
    raise CollectError("unreadable", "a parcel's parts are base64 texts")
