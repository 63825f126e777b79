"""The history of transitions as a hash chain with signed heads: no edit, cut or second history goes unseen.

A transition's hash is the SHA-256 of the hash before it and of its own canonical form: JSON of its columns in the
alerts stream but the two hashes, keys sorted, times in microseconds, nulls left out. A head is signed with Ed25519
(RFC 8032) and leaves the machine with every notification.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from alerts.watcher import Draft
from contract.errors import StoreError
from contract.files import write_whole
from contract.streams.alerts import ALERTS

GENESIS = "0" * 64
"""The hash before the first transition of a hall."""

_HASHES = frozenset({"previous_hash", "hash"})
_COLUMNS = tuple(column.name for column in ALERTS.columns if column.name not in _HASHES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Transition:
    """A transition with its place in the chain."""

    chain: str
    index: int
    previous_hash: str
    hash: str
    body: bytes
    """Its canonical form."""

    def row(self) -> dict[str, Any]:
        """Return its columns in the alerts stream."""
        columns: dict[str, Any] = orjson.loads(self.body)
        return columns | {"previous_hash": self.previous_hash, "hash": self.hash}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHead:
    """Proof that a chain had reached an index with a hash at a time."""

    chain: str
    index: int
    hash: str
    signed_us: int
    signature: str

    @property
    def statement(self) -> bytes:
        return f"hallwatch chain head\n{self.chain}\n{self.index}\n{self.hash}\n{self.signed_us}\n".encode()

    @property
    def text(self) -> str:
        """One line that carries everything, for a notification."""
        return f"{self.chain}/{self.index}/{self.hash}/{self.signed_us}/{self.signature}"

    @classmethod
    def parse(cls, text: str) -> SignedHead:
        """Read what `text` wrote; raise StoreError(damaged)."""
        try:
            chain, index, digest, signed_us, signature = text.strip().split("/", 4)
            return cls(
                chain=chain, index=int(index), hash=digest, signed_us=int(signed_us), signature=signature
            )
        except ValueError as error:
            raise StoreError("damaged", f"not a signed head: {text[:200]!r}") from error

    def is_genuine(self, key: Ed25519PublicKey) -> bool:
        try:
            key.verify(base64.b64decode(self.signature), self.statement)
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True


class Chain:
    """The growing end of one chain."""

    def __init__(self, chain: str, hall: str, *, synthetic: bool, index: int, head: str) -> None:
        """`index` is that of the next transition, `head` the hash before it."""
        self.chain = chain
        self.index = index
        self.head = head
        self._hall = hall
        self._synthetic = synthetic

    def extend(self, drafts: Sequence[Draft], digest: str) -> list[Transition]:
        """Give drafts, decided by rules of this digest, their place in the chain."""
        return [self._append(draft, digest) for draft in drafts]

    def _append(self, draft: Draft, digest: str) -> Transition:
        columns = {
            "ts": draft.ts_us,
            "host": draft.host,
            "synthetic": self._synthetic,
            "chain_index": self.index,
            "fingerprint": fingerprint(draft.rule.rule, draft.entity),
            "rule": draft.rule.rule,
            "entity_kind": draft.entity_kind,
            "entity": draft.entity,
            "transition": draft.transition,
            "end_reason": draft.end_reason,
            "severity": draft.rule.severity,
            "owner": draft.rule.owner,
            "runbook": draft.rule.page,
            "summary": draft.summary,
            "began": draft.began_us,
            "evidence_ts": draft.evidence_ts_us,
            "evidence": draft.evidence,
            "rules_digest": digest,
        }
        body = canonical(columns)
        transition = Transition(self.chain, self.index, self.head, chained(self.head, body), body)
        self.index, self.head = self.index + 1, transition.hash
        return transition


def fingerprint(rule: str, entity: str) -> str:
    """Return the identity of an alert."""
    return hashlib.sha256(f"{rule}\0{entity}".encode()).hexdigest()[:32]


def canonical(columns: Mapping[str, Any]) -> bytes:
    """Return the canonical form of a transition out of its columns, as written or as the lake gives them."""
    values = {name: _plain(columns[name]) for name in _COLUMNS if columns.get(name) is not None}
    return orjson.dumps(values, option=orjson.OPT_SORT_KEYS)


def chained(previous_hash: str, body: bytes) -> str:
    """Return the hash of a transition."""
    return hashlib.sha256(previous_hash.encode() + body).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        since = aware - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return value


class Signer:
    """The engine's signing key: made at the first start, readable by its owner alone."""

    def __init__(self, folder: Path, *, may_make: bool = True) -> None:
        """Load `chain.key`, or make it with `chain.pub` beside it; raise StoreError.

        Not `may_make`: a key that signed before must be there, for another one would make its heads look forged.
        """
        path = folder / "chain.key"
        try:
            if may_make and not path.exists():
                _make_key(path)
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise StoreError("unreadable", f"{path}: the signing key cannot be used: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise StoreError("unreadable", f"{path}: not an Ed25519 key")
        self._key = key

    @property
    def public_key(self) -> Ed25519PublicKey:
        return self._key.public_key()

    def sign(self, transition: Transition, now_us: int) -> SignedHead:
        """Return the proof that the chain has reached this transition."""
        head = SignedHead(
            chain=transition.chain,
            index=transition.index,
            hash=transition.hash,
            signed_us=now_us,
            signature="",
        )
        return replace(head, signature=base64.b64encode(self._key.sign(head.statement)).decode())


def _make_key(path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_whole(path.with_suffix(".pub"), public, 0o644)
    write_whole(path, private, 0o600)


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Read the key that verifies heads; raise StoreError."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError("unreadable", f"{path}: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise StoreError("unreadable", f"{path}: not an Ed25519 key")
    return key


@dataclass(frozen=True, slots=True)
class Flaw:
    """One place where the history is not what was signed."""

    kind: str
    """edited, gap, cut, fork, doubled, unlinked or bad_signature."""
    chain: str
    index: int
    message: str


def verify_chain(
    rows: Iterable[Mapping[str, Any]],
    key: Ed25519PublicKey,
    heads: Iterable[SignedHead] = (),
    *,
    anchors: Mapping[str, tuple[int, str]] | None = None,
) -> list[Flaw]:
    """Check rows of the alerts stream, of one or more chains, against themselves and against signed heads.

    A row needs `_epoch` (its chain). `anchors`: where older transitions were pruned on purpose, the index and the
    hash that a chain goes on from. An empty answer means whole.
    """
    chains: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        chains.setdefault(str(row["_epoch"]), []).append(row)
    flaws: list[Flaw] = []
    hashes = {
        name: _verify_links(name, part, (anchors or {}).get(name), flaws) for name, part in chains.items()
    }
    _verify_beginnings(hashes, chains, flaws)
    for head in heads:
        _verify_head(head, hashes.get(head.chain), key, flaws)
    return sorted(flaws, key=lambda flaw: (flaw.chain, flaw.index, flaw.kind))


Hashes = dict[int, str]
"""The hash of every transition of one chain, by index."""


def _verify_links(
    chain: str, rows: list[Mapping[str, Any]], anchor: tuple[int, str] | None, flaws: list[Flaw]
) -> Hashes:
    hashes: Hashes = {}
    expected, previous = anchor if anchor is not None else (0, None)
    for row in sorted(rows, key=lambda row: int(row["chain_index"])):
        index = int(row["chain_index"])
        if index in hashes:
            same = hashes[index] == row["hash"]
            message = "is stored twice" if same else "has two different versions"
            flaws.append(Flaw("doubled" if same else "fork", chain, index, f"transition {index} {message}"))
            continue
        if index > expected:
            missing = f"{expected}" if index == expected + 1 else f"{expected} to {index - 1}"
            flaws.append(Flaw("gap", chain, expected, f"transitions {missing} are missing"))
            previous = None
        if row["hash"] != chained(row["previous_hash"], canonical(row)):
            flaws.append(Flaw("edited", chain, index, f"transition {index} is not what was hashed"))
        if previous is not None and row["previous_hash"] != previous:
            flaws.append(Flaw("unlinked", chain, index, f"transition {index} does not follow {index - 1}"))
        hashes[index] = previous = str(row["hash"])
        expected = index + 1
    return hashes


def _verify_beginnings(
    hashes: Mapping[str, Hashes], chains: Mapping[str, list[Mapping[str, Any]]], flaws: list[Flaw]
) -> None:
    """Check that every chain goes on from the genesis or from the last transition of another chain, once."""
    ends = {found[max(found)]: name for name, found in hashes.items()}
    middles = {digest: name for name, found in hashes.items() for digest in found.values()}
    taken: dict[str, str] = {}
    for name, rows in sorted(chains.items()):
        first = min(rows, key=lambda row: int(row["chain_index"]))
        if int(first["chain_index"]) != 0:
            continue
        before = str(first["previous_hash"])
        if before in taken:
            message = f"chains {taken[before]} and {name} both follow {before[:12]}"
            flaws.append(Flaw("fork", name, 0, message))
        taken[before] = name
        if before == GENESIS or before in ends:
            continue
        if before in middles:
            message = f"it follows {before[:12]}, after which chain {middles[before]} went on"
            flaws.append(Flaw("fork", name, 0, message))
        else:
            flaws.append(Flaw("gap", name, 0, f"it follows {before[:12]}, which is not there"))


def _verify_head(head: SignedHead, hashes: Hashes | None, key: Ed25519PublicKey, flaws: list[Flaw]) -> None:
    if not head.is_genuine(key):
        flaws.append(
            Flaw(
                "bad_signature", head.chain, head.index, f"the head at {head.index} is not signed by this key"
            )
        )
    elif not hashes or head.index > max(hashes):
        last = max(hashes) if hashes else "nothing"
        message = f"a head at {head.index} was signed, the history ends at {last}"
        flaws.append(Flaw("cut", head.chain, head.index, message))
    elif head.index in hashes and hashes[head.index] != head.hash:
        message = f"transition {head.index} is not the one whose head was signed"
        flaws.append(Flaw("edited", head.chain, head.index, message))
