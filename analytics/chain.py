"""The history of alerts is one chain: a transition is stored only where it continues the stored head.

Two engines that both believe they are the hall's would each append to the chain; the sink stores what comes first
and rejects the other as a fork, whatever its sequence numbers say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import duckdb
import pyarrow as pa

from analytics.lake import LakeTable
from contract.bus.protocols import Message
from contract.errors import ContractError, StoreError
from contract.reader import Batch, DeadLetter, EventOrigin, MarkKey, Marks, read_batch
from contract.stream import Stream

REMEMBERED = 10_000
"""Transitions whose hashes are kept, to tell a resend from a fork that repeats their numbers."""


class Link(NamedTuple):
    """One transition's place in the chain."""

    epoch: str
    number: int
    previous_hash: str
    hash: str


class Chain:
    """The stored end of the chain of alerts."""

    def __init__(self, links: Sequence[Link] = ()) -> None:
        self._hashes: dict[tuple[str, int], str] = {}
        self._head: str | None = None
        self._append(links)

    def extend(self, links: Sequence[Link], is_repeat: Callable[[Link], bool]) -> list[int]:
        """Append the links of one message, all or none; return the places of those that are no repeats.

        Raises ContractError(fork) for one that continues another head than the stored one.
        """
        head, fresh = self._head, []
        for at, link in enumerate(links):
            if is_repeat(link):
                if self._hashes.get((link.epoch, link.number), link.hash) != link.hash:
                    raise ContractError("fork", f"{_words(link)} is stored with another hash")
                continue
            if head is not None and link.previous_hash != head:
                raise ContractError("fork", f"{_words(link)} continues {link.previous_hash}, not {head}")
            head = link.hash
            fresh.append(at)
        self._append([links[at] for at in fresh])
        return fresh

    def _append(self, links: Sequence[Link]) -> None:
        for link in links:
            self._head = self._hashes[link.epoch, link.number] = link.hash
        while len(self._hashes) > REMEMBERED:
            del self._hashes[next(iter(self._hashes))]


def _words(link: Link) -> str:
    return f"transition {link.number} of chain {link.epoch}"


def load_chain(table: LakeTable) -> Chain:
    """Return the chain as the table holds it; raise StoreError."""
    files = table.files()
    if not files:
        return Chain()
    question = (
        "SELECT _epoch, chain_index, previous_hash, hash FROM read_parquet($files) "
        f"ORDER BY _received DESC, _offset DESC LIMIT {REMEMBERED}"
    )
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            found = connection.sql(question, params={"files": files}).fetchall()
    except duckdb.Error as error:
        raise StoreError("unreadable", f"{table.path}: the chain: {error}"[:500]) from error
    return Chain([Link(*row) for row in reversed(found)])


def read_chained(
    stream: Stream, messages: Sequence[Message], marks: Marks, chain: Chain, *, synthetic: bool | None
) -> Batch:
    """Do what `read_batch` does, message by message, and reject what does not continue the chain.

    A rejected message moves no mark: its numbers are the fork's, and the chain's own still come.
    """
    batch = Batch(stream, stream.schema.empty_table())
    tables: list[pa.Table] = []
    for message in messages:
        alone = read_batch(stream, [message], {}, synthetic=synthetic)
        batch.dead += alone.dead
        batch.values_rejected.update(alone.values_rejected)
        try:
            kept = _continue(chain, alone, marks)
        except ContractError as error:
            batch.dead.append(DeadLetter(message, error))
            continue
        batch.repeats += len(alone.events) - len(kept)
        batch.events += [alone.events[at] for at in kept]
        tables.append(alone.table.take(pa.array(kept, pa.int64())))
    if tables:
        batch.table = pa.concat_tables(tables)
    return batch


def _continue(chain: Chain, batch: Batch, marks: Marks) -> list[int]:
    """Append one message's transitions to the chain; return the rows to keep and advance their marks."""
    names = ("chain_index", "previous_hash", "hash")
    rows = list(zip(*(batch.table.column(name).to_pylist() for name in names), strict=True))
    if len(rows) != len(batch.events) or any(
        event.sequence != row[0] for event, row in zip(batch.events, rows, strict=False)
    ):
        raise ContractError("bad_value", "an event is one transition, whose chain index is its sequence")
    links = [Link(event.epoch, *row) for event, row in zip(batch.events, rows, strict=True)]
    keys = {link.epoch: mark_key(event) for link, event in zip(links, batch.events, strict=True)}
    fresh = chain.extend(links, lambda link: link.number <= marks.get(keys[link.epoch], -1))
    for at in fresh:
        marks[keys[links[at].epoch]] = links[at].number
    return fresh


def mark_key(event: EventOrigin) -> MarkKey:
    """Return whose mark an event moves."""
    return MarkKey(event.message.partition, event.source, event.epoch)
