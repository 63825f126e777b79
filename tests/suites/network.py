"""Two hosts and a network device between them, each a network namespace of this machine."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Self

CHECKOUT = Path(__file__).resolve().parents[2]
MIDDLEBOX = Path(__file__).with_name("middlebox.py")

_PATIENCE_SECONDS = 60


class NetworkMissingError(Exception):
    """This machine cannot have a network of its own, and why."""


class Network:
    """Hosts `a` (10.77.0.1) and `b` (10.77.0.2); `middle` changes what happens to what a sends to b."""

    addresses: ClassVar = {"a": "10.77.0.1", "b": "10.77.0.2"}

    def __init__(self) -> None:
        self._names = {name: f"hw{os.getpid()}{name}" for name in ("a", "b", "m")}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Raise NetworkMissingError where the kernel, the tools or the privilege are missing."""
        if sys.platform != "linux" or shutil.which("ip") is None:
            raise NetworkMissingError("network namespaces need Linux and the command `ip`")
        if os.geteuid() != 0:
            raise NetworkMissingError("network namespaces need root")
        with ExitStack() as stack:
            self._stack = stack
            self._build()
            self._middle = self.start(
                "m", [sys.executable, str(MIDDLEBOX), "to-a", "to-b"], stdin=subprocess.PIPE
            )
            self.middle()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _build(self) -> None:
        for space in self._names.values():
            self._ip("netns", "add", space)
            self._stack.callback(self._ip, "netns", "delete", space)
        for host in ("a", "b"):
            there = ("netns", self._names[host])
            self._ip(
                *("link", "add", "eth0", *there, "type", "veth"),
                *("peer", "name", f"to-{host}", "netns", self._names["m"]),
            )
            self._ip("-n", there[1], "address", "add", f"{self.addresses[host]}/24", "dev", "eth0")
            self._ip("-n", there[1], "link", "set", "lo", "up")
            self._ip("-n", there[1], "link", "set", "eth0", "up")
            self._ip("-n", self._names["m"], "link", "set", f"to-{host}", "up")

    def _ip(self, *arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NetworkMissingError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def start(self, host: str, command: list[str], **options: Any) -> Child:
        """Start a process on a host; it ends with the network at the latest."""
        child = Child(["ip", "netns", "exec", self._names[host], *command], **options)
        self._stack.callback(child.stop)
        return child

    def collect(self, host: str, config: Path) -> Child:
        """Run `hallwatch collect` on a host, to standard output."""
        command = [sys.executable, "-m", "hallwatch", "collect", "--to", "stdout", "--config", str(config)]
        return self.start(host, command)

    def middle(self, **faults: Any) -> dict[str, float]:
        """Set what happens on the way, nothing else; return what happened since it was set last."""
        self._middle.tell(json.dumps(faults))
        counts: dict[str, float] = self._middle.line()
        return counts


class Child:
    """A process that prints lines of JSON."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
            **options,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def line(self) -> Any:
        """Return the next line; raise queue.Empty where none comes."""
        return json.loads(self._lines.get(timeout=_PATIENCE_SECONDS))

    def rows(
        self, topic: str, *, until: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> list[dict[str, Any]]:
        """Return the one-row events of a topic as they come, up to the first that `until` likes."""
        found: list[dict[str, Any]] = []
        while not found or not until(found[-1]):
            event = self.line()
            if event["topic"] == topic:
                found.append({k: v[0] if isinstance(v, list) else v for k, v in event["body"].items()})
        return found

    def skip(self) -> None:
        """Forget what was printed until now."""
        while not self._lines.empty():
            self._lines.get()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
