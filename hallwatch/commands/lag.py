"""`hallwatch lag`: how far the readers of the bus are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from contract.bus import Bus, TopicPartition, open_bus
from contract.config import BusSection, load_config
from contract.errors import TransportError
from contract.streams import STREAMS
from hallwatch.commands.options import CONFIG, format_option
from hallwatch.terminal import counted, open_console, say


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """How far a group is in one partition; `committed` is None where it never said."""

    topic: str
    partition: int
    end: int
    committed: int | None
    lag: int


@click.command()
@CONFIG
@click.option("--group", default="sink", show_default=True, help="Of which readers.")
@format_option(("table", "json"), "json: one object per line, of every partition.")
def lag(config_path: Path, group: str, output_format: str) -> None:
    """Show how many messages on the bus a group of readers has not dealt with.

    For the sink that is what is not in the lake yet. Topics whose settings are not those they would be made with are
    named too.
    """
    section = load_config(config_path).bus
    with closing(open_bus(section)) as bus:
        places = list(_find_places(bus, group))
        differences = list(_differences(bus, {place.topic for place in places}))
    if output_format == "json":
        for place in places:
            sys.stdout.buffer.write(orjson.dumps(asdict(place), option=orjson.OPT_APPEND_NEWLINE))
        return
    console = open_console()
    _print(console, places, section)
    for line in differences:
        say(console, line, "yellow")


def _find_places(bus: Bus, group: str) -> Iterator[_Place]:
    """Yield how far a group is in each partition of the streams that are on the bus; raise TransportError."""
    partitions = [
        TopicPartition(topic, number) for topic, count in _topics(bus).items() for number in range(count)
    ]
    with closing(bus.consumer(group)) as consumer:
        begins = consumer.begin_offsets(partitions)
        # Before the ends, for a hall goes on writing: so a group is never shown further than it is.
        committed = bus.committed(group)
        ends = consumer.end_offsets(partitions)
    for at in partitions:
        end, said = ends[at], committed.get(at)
        yield _Place(
            topic=at.topic,
            partition=at.partition,
            end=end,
            committed=said,
            lag=max(0, end - max(begins[at], said or 0)),
        )


def _topics(bus: Bus) -> dict[str, int]:
    found = {}
    for stream in STREAMS.values():
        try:
            found[stream.topic] = bus.describe(stream.topic).partitions
        except TransportError as error:
            if error.reason != "no_topic":
                raise
    return found


def _differences(bus: Bus, topics: set[str]) -> Iterator[str]:
    """Yield a line per setting of topics that is not ours."""
    for topic, setting, wanted, found in bus.differences(sorted(topics)):
        yield f"{topic}: {setting} is {found}, a new topic would have {wanted}"


def _print(console: Console, places: list[_Place], section: BusSection) -> None:
    used = [place for place in places if place.end]
    table = Table("topic", "partition", "end", "committed", "lag", box=SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for place in used:
        committed = "-" if place.committed is None else f"{place.committed:,}"
        table.add_row(place.topic, str(place.partition), f"{place.end:,}", committed, f"{place.lag:,}")
    if used:
        console.print(table)
    waiting = sum(place.lag for place in places)
    topics = counted(len({place.topic for place in places}), "topic")
    say(console, f"{counted(waiting, 'message')} waiting in {topics} on {section.place}")
