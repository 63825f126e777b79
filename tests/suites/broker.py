"""A real Kafka broker of one node on loopback, to be started, killed, frozen and started again.

It needs Java 17 and, the first time on a machine, Maven: the jars stay in the user's cache folder. Tests get one
from the fixtures `kafka_broker` and `own_broker`; a script uses it as it is:

    with Broker(folder).start() as broker:
        ... broker.servers ...
"""

from __future__ import annotations

import base64
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import IO, Self

KAFKA = "4.4.0"
START_SECONDS = 90.0
STOP_SECONDS = 15.0
FETCH_SECONDS = 300.0
PORTS = range(20_000, 30_000)
"""Below the range of ephemeral ports: there a client that reconnects in vain would one day connect to itself."""

_LOG_NAME = "broker.log"
_READY = b"Kafka Server started"
_JAVA = (
    "java",
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dlog4j2.configurationFile=log4j2.properties",
)

_POM = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-broker</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA}</version>
    </dependency>
    <!-- Without a binding the broker logs nothing. -->
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.5</version>
    </dependency>
  </dependencies>
  <build><plugins><plugin>
    <groupId>org.apache.maven.plugins</groupId>
    <artifactId>maven-dependency-plugin</artifactId><version>3.8.1</version>
    <configuration>
      <includeScope>runtime</includeScope><outputDirectory>${{project.basedir}}/libs</outputDirectory>
    </configuration>
  </plugin></plugins></build>
</project>
"""

_LOGGING = """\
rootLogger.level=INFO
rootLogger.appenderRef.o.ref=O
logger.config.name=org.apache.kafka.common.config.AbstractConfig
logger.config.level=WARN
appender.o.type=Console
appender.o.name=O
appender.o.layout.type=PatternLayout
appender.o.layout.pattern=%d{HH:mm:ss.SSS} %p %c{1} %m%n
"""

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "data",
    "num.partitions": "1",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A killed node is refused until its old session has ended: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.index.size.max.bytes": "1048576",
}


class BrokerMissingError(Exception):
    """This machine cannot run a broker; the message says what it lacks."""


class BrokerFailedError(Exception):
    """The broker did not start; the message ends with the end of its log."""


class Broker:
    """One node that is both broker and controller, its data in `folder`.

    `listeners` are security protocols, each with a port of its own; clients use the first, the node itself the
    last. `settings` go over the defaults of the server; `scram` holds users with their passwords.
    It is killed when this process ends, however that happens.
    """

    def __init__(
        self,
        folder: Path,
        *,
        listeners: Sequence[str] = ("PLAINTEXT",),
        settings: Mapping[str, str] | None = None,
        scram: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self._listeners = listeners
        self._settings = dict(settings or {})
        self._scram = dict(scram or {})
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it on new ports, or where it was before; return when it serves.

        Raises BrokerMissingError, BrokerFailedError.
        """
        libraries = fetch_libraries()
        first = not self._ports
        for tries_left in (3, 2, 1, 0):
            if first:
                ports = find_ports(len(self._listeners) + 1)
                self._ports = dict(zip((*self._listeners, "CONTROLLER"), ports, strict=True))
            if not (self.folder / "data").exists() or first:
                self._format(libraries)
            try:
                self._run(libraries)
            except BrokerFailedError as error:
                # Someone else took a port between our look and the start.
                if not first or not tries_left or "Address already in use" not in str(error):
                    raise
            else:
                break
        return self

    @property
    def servers(self) -> str:
        """Address for clients."""
        return self.address(self._listeners[0])

    def address(self, listener: str) -> str:
        """Return the address of one listener."""
        return f"127.0.0.1:{self._ports[listener]}"

    def kill(self) -> None:
        """Kill it as a crash does."""
        self._running().kill()
        self._reap()

    def freeze(self) -> None:
        """Stop it in its tracks: connections stay open, nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start it again with its data, on its ports; stop it first if it runs. Returns when it serves."""
        self.stop()
        self.start()

    def replace(self) -> None:
        """Put an empty cluster in its place, on its ports."""
        self.stop()
        shutil.rmtree(self.folder / "data")
        self.start()

    def stop(self) -> None:
        """End it in good order, by force after a while."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self._process.kill()
        self._reap()

    def log(self) -> str:
        """Return what it logged since it was first started."""
        path = self.folder / _LOG_NAME
        return path.read_text(errors="replace") if path.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BrokerFailedError("the broker is not running")
        return self._process

    def _reap(self) -> None:
        self._running().wait()
        self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _format(self, libraries: Path) -> None:
        """Make an empty data folder."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        lines = [f"{key}={value}" for key, value in (self._addresses() | _SETTINGS | self._settings).items()]
        (self.folder / "server.properties").write_text("\n".join(lines) + "\n")
        # A name that began with a dash would be taken for an option.
        cluster = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        users = [
            word
            for name, password in self._scram.items()
            for word in ("--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]")
        ]
        tool = [*_JAVA, "-cp", f"{libraries}/*", "kafka.tools.StorageTool"]
        done = subprocess.run(
            [*tool, "format", "-t", cluster, "-c", "server.properties", *users],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BrokerFailedError(f"the data folder could not be made:\n{done.stdout}{done.stderr}")

    def _addresses(self) -> dict[str, str]:
        urls = {name: f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()}
        advertised = [urls[name] for name in self._listeners]
        return {
            "controller.quorum.voters": f"1@127.0.0.1:{self._ports['CONTROLLER']}",
            "listeners": ",".join(urls.values()),
            "advertised.listeners": ",".join(advertised),
            "inter.broker.listener.name": self._listeners[-1],
            "listener.security.protocol.map": ",".join(
                [*(f"{name}:{name}" for name in self._listeners), "CONTROLLER:PLAINTEXT"]
            ),
        }

    def _run(self, libraries: Path) -> None:
        with ExitStack() as undo:
            log = undo.enter_context((self.folder / _LOG_NAME).open("a+b"))
            begin = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                [*_JAVA, "-cp", f"{libraries}/*", "kafka.Kafka", "server.properties"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the tests, which then stop it in order.
                start_new_session=True,
            )
            self._guard = _guard(self._process.pid)
            undo.callback(self.stop)
            self._await_ready(log, begin)
            undo.pop_all()
            log.close()

    def _await_ready(self, log: IO[bytes], begin: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            ended = self._running().poll() is not None
            log.seek(begin)
            if _READY in log.read():
                return
            if ended or time.monotonic() > deadline:
                raise BrokerFailedError(f"the broker did not start:\n{self.log_tail()}")
            time.sleep(0.05)


def _guard(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that kills another when this one is gone: its standard input ends then."""
    return subprocess.Popen(
        ["sh", "-c", f"read never; kill -9 {pid}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def find_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on now."""
    with ExitStack() as held:
        found: list[int] = []
        for port in random.sample(PORTS, len(PORTS)):
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                break
        return found


def fetch_libraries() -> Path:
    """Return the folder of the broker's jars; fetch them where they are not there yet.

    Raises BrokerMissingError.
    """
    if shutil.which("java") is None:
        raise BrokerMissingError("no broker: java is not installed (17 or newer)")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hallwatch"
    libraries = cache / f"kafka-{KAFKA}"
    if libraries.is_dir():
        return libraries
    if shutil.which("mvn") is None:
        raise BrokerMissingError("no broker: mvn is not installed, which fetches it once")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libraries.is_dir():
            with TemporaryDirectory(dir=cache) as folder:
                _fetch(Path(folder)).rename(libraries)
    return libraries


def _fetch(folder: Path) -> Path:
    """Fetch into a folder; return where the jars are."""
    (folder / "pom.xml").write_text(_POM)
    command = ["mvn", "-B", "-ntp", "-q", "dependency:copy-dependencies"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerMissingError(f"no broker: mvn fetched it in vain for {FETCH_SECONDS} s") from error
    if done.returncode:
        errors = re.findall(r"^\[ERROR\] (.+)", done.stdout, re.MULTILINE)
        raise BrokerMissingError(f"no broker: mvn could not fetch it: {' '.join(errors[:1])}")
    return folder / "libs"
