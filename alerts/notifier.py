"""What tells people: a protocol, its configuration, and how the configured ones are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import Field

from alerts.chain import SignedHead
from alerts.rule import Severity
from contract.config import StrictConfig, parse_model
from contract.errors import ConfigError
from contract.registry import Registry


class NotifierConfig(StrictConfig):
    """What every notifier's table says."""

    notifier: str = Field(description="Which notifier it is.")
    name: str = Field(default="", max_length=64, description="Its own name, where there are two of a kind.")
    severities: tuple[Severity, ...] = Field(
        default=("info", "minor", "major", "critical"), description="What it is told about."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One transition, for one notifier."""

    key: str
    """Equal for every repeat: a receiver that has seen it has nothing to do."""
    hall: str
    told_us: int
    """Now: long after the transition, where the receiver was away."""
    place: str | None
    """Where it is, from the hall down to the host; null where the inventory does not say."""
    row: Mapping[str, Any]
    """The transition's columns in the alerts stream, times in microseconds."""
    head: SignedHead | None
    """A signed head of the history that holds it."""


class Notifier(Protocol):
    """Tells one receiver. Called from one thread of its own, in the order of the history."""

    @property
    def batch_size(self) -> int:
        """How many notifications it takes at once."""
        ...

    @property
    def refresh_seconds(self) -> float | None:
        """How often it wants to be shown everything that fires; None = never."""
        ...

    def notify(self, notifications: Sequence[Notification]) -> str:
        """Tell all of them and return what the receiver said; the call takes bounded time.

        Raises NotifyError: `rejected` where no repeat can help, else it is called again later.
        """
        ...

    def refresh(self, firing: Sequence[Notification], now_us: int, *, alive: bool, hall: str) -> None:
        """Take everything that fires now; `alive` = the engine judged a batch within the last minute."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NotifierPlugin:
    """How a notifier is configured and made."""

    config: type[NotifierConfig]
    make: Callable[[Any], Notifier]


NOTIFIERS: Registry[NotifierPlugin] = Registry("alerts.notify")

_Notifier = TypeVar("_Notifier", bound=Callable[..., Notifier])


def notifier(name: str, config: type[NotifierConfig]) -> Callable[[_Notifier], _Notifier]:
    """Register a class as a notifier; it is made from its configuration."""

    def decorate(make: _Notifier) -> _Notifier:
        NOTIFIERS.add(name, NotifierPlugin(config, make))
        return make

    return decorate


@dataclass(frozen=True, slots=True)
class Configured:
    """A notifier with its configuration."""

    name: str
    config: NotifierConfig
    notifier: Notifier


def build_notifiers(tables: Sequence[Mapping[str, Any]], folder: Path = Path()) -> list[Configured]:
    """Make the notifiers that a configuration lists; nothing is connected yet. Raises ConfigError.

    Relative paths in them count from `folder`.
    """
    plugins, built = NOTIFIERS.all(), dict[str, Configured]()
    for number, table in enumerate(tables, 1):
        where = f"[[engine.notifiers]] number {number}"
        plugin = plugins.get(str(table.get("notifier")))
        if plugin is None:
            known = ", ".join(plugins)
            raise ConfigError(
                "unknown_name", f"{where}: notifier {table.get('notifier')!r} is none of {known}"
            )
        config = parse_model(plugin.config, table, where).anchored(folder)
        name = config.name or config.notifier
        if name in built:
            raise ConfigError("invalid", f"{where}: two notifiers are named {name!r}; give one a `name`")
        built[name] = Configured(name, config, plugin.make(config))
    return list(built.values())
