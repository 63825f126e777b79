"""Processes that the bus's fault tests start and kill: `python -m tests.faults.bus_children NAME ARGUMENTS`.

Each prints what it has promised, one line at a time, only after the promise was given.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from uuid import uuid4

from contract.bus import Record, TopicPartition
from contract.bus.local import LocalBus
from contract.errors import TransportError
from ingest.spool import Outgoing, SpoolOutlet

TOPIC, PARTITIONS = "t", 3
_print_lock = threading.Lock()


def say(*words: object) -> None:
    """Print one whole line, whichever thread speaks."""
    with _print_lock:
        sys.stdout.write(" ".join(map(str, words)) + "\n")
        sys.stdout.flush()


def stamped(*words: object) -> Record:
    """Return a record of a few words, now and then a large one."""
    text = " ".join(map(str, words)).encode()
    return Record(
        key="k", headers={"words": text.decode()}, body=text.ljust(random.choice((10, 2_000, 60_000)))
    )


def write(path: str, name: str) -> None:
    """Append for ever: with a producer from one thread, and batches with a cursor from another."""
    bus = LocalBus(Path(path))
    bus.create_topic(TOPIC, PARTITIONS)
    epoch = uuid4().hex[:8]
    threading.Thread(target=produce, args=(bus, name, epoch), daemon=True).start()
    number = int(bus.cursor(name) or b"-1") + 1
    while True:
        size = random.randint(1, 40)
        batch = [
            (TOPIC, random.randrange(PARTITIONS), stamped("batch", name, number + n)) for n in range(size)
        ]
        number += size
        bus.append(batch, {name: str(number - 1).encode()})
        say("batch", name, number - 1)


def produce(bus: LocalBus, name: str, epoch: str) -> None:
    """Send numbered records to one partition each, and say which were acknowledged where."""
    producer = bus.producer()
    number = 0
    while True:
        for _ in range(random.randint(1, 200)):
            words = ("sent", f"{name}/{epoch}", number)
            partition = number % PARTITIONS

            def on_ack(
                result: int | TransportError, words: tuple[object, ...] = words, partition: int = partition
            ) -> None:
                say(*words, partition, result)

            producer.send(TOPIC, partition, stamped(*words), on_ack)
            number += 1
        producer.flush()


def spool(path: str, name: str) -> None:
    """Put numbered events into a spool that forwards to a bus; the cursor says where to go on."""
    bus = LocalBus(Path(path) / "bus")
    bus.create_topic(TOPIC, PARTITIONS)
    outlet = SpoolOutlet(Path(path) / "spool", bus)
    say("depth", outlet.depth())
    number = int(outlet.cursor(name) or b"-1") + 1
    while True:
        size = random.randint(1, 20)
        batch = [
            Outgoing(TOPIC, (number + n) % PARTITIONS, stamped("put", name, number + n)) for n in range(size)
        ]
        number += size
        outlet.put(batch, (name, str(number - 1).encode()))
        say("put", name, number - 1)


def fill(path: str, limit: str) -> None:
    """Append until a write fails, make room, go on, and print what can be read then.

    `mount`: `path` becomes a small file system that this process alone sees. `size`: no file may grow beyond some
    size, so that a write stops half-way.
    """
    place = Path(path)
    if limit == "mount":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", path], check=True)
        (place / "ballast").write_bytes(b"x" * 2**20)
    bus = LocalBus(place / "bus")
    bus.create_topic(TOPIC, PARTITIONS)
    if limit == "size":
        limit_files(2_500_000)
    stored = 0
    while append_pair(bus, stored):
        stored += 1
    for _ in range(3):
        stored += append_pair(bus, stored)
    if limit == "mount":
        (place / "ballast").unlink()
    else:
        limit_files(resource.RLIM_INFINITY)
    recovered = append_pair(bus, stored)
    stored += recovered
    say("recovered", recovered)
    say("stored", stored, (bus.cursor("c") or b"").decode())
    with closing(bus.consumer("g")) as consumer:
        partitions = [TopicPartition(TOPIC, n) for n in range(2)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        while messages := consumer.poll(0):
            for message in messages:
                say("read", message.partition, message.offset, message.headers["words"])
    bus.close()


def append_pair(bus: LocalBus, number: int) -> bool:
    """Append a number to two partitions, with a cursor; print why that failed."""
    record = Record(key="k", headers={"words": str(number)}, body=bytes(20_000))
    try:
        bus.append([(TOPIC, 0, record), (TOPIC, 1, record)], {"c": str(number).encode()})
    except TransportError as error:
        say("failed", error.reason)
        return False
    return True


def limit_files(size: int) -> None:
    """Let no file of this process grow beyond a size; Python turns the signal of that into an error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


if __name__ == "__main__":
    random.seed()
    {"write": write, "spool": spool, "fill": fill}[sys.argv[1]](*sys.argv[2:])
