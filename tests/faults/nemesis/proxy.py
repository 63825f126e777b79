"""A TCP proxy that spoils connections: latency, cuts, a black hole, half-closed ends, slow reading."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Literal

Mode = Literal["pass", "latency", "cut", "black_hole", "half_close", "slow_read"]

MODES: tuple[Mode, ...] = ("latency", "cut", "black_hole", "half_close", "slow_read")
"""What spoils."""

LATENCY_SECONDS = 0.3
SLOW_BYTES = 200
SLOW_SECONDS = 0.02
"""A slow reader takes so many bytes, then waits so long."""

_CHUNK = 65_536


class Proxy:
    """Listens on a port of loopback and passes on to another; what it does to that is `mode`.

    A new mode counts for what flows from then on, on open connections too; `cut` also ends those at once.
    """

    def __init__(self) -> None:
        self.mode: Mode = "pass"
        self.port = 0
        self.target = 0
        """Port of loopback that it passes on to."""
        self.spoiled = 0
        """How often it did harm since the mode was set."""
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._ready = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, target: int = 0) -> None:
        """Listen; return when it does."""
        self.target = target
        self._thread.start()
        self._ready.wait()

    def set(self, mode: Mode) -> None:
        self.mode, self.spoiled = mode, 0
        if mode in ("cut", "pass"):
            # What was swallowed in a black hole never comes: an end that waits for it must learn of that.
            self._loop.call_soon_threadsafe(self._cut)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))

    def _cut(self) -> None:
        for writer in list(self._writers):
            self._abort(writer)

    def _abort(self, writer: asyncio.StreamWriter) -> None:
        self.spoiled += self.mode == "cut"
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == "cut":
            self._abort(writer)
            return
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward}
        try:
            await asyncio.gather(self._pump(reader, onward, back=False), self._pump(there, writer, back=True))
        finally:
            self._writers -= {writer, onward}
            writer.close()
            onward.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        with suppress(OSError):
            while chunk := await reader.read(SLOW_BYTES if self.mode == "slow_read" else _CHUNK):
                match self.mode:
                    case "latency":
                        self.spoiled += 1
                        await asyncio.sleep(LATENCY_SECONDS)
                    case "slow_read":
                        self.spoiled += 1
                        await asyncio.sleep(SLOW_SECONDS)
                    case "black_hole":
                        self.spoiled += 1
                        continue
                    case "half_close" if back:
                        # The request arrived; that it did is never said.
                        self.spoiled += 1
                        break
                    case _:
                        pass
                writer.write(chunk)
                await writer.drain()
        with suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()
