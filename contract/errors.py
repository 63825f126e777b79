"""Every error that hallwatch raises on purpose.

    HallwatchError
    ├── ConfigError        a file or setting a person wrote is wrong; the process does not start
    ├── CollectError       a device could not be read; tried again with back-off
    ├── ContractError      a message breaks the contract; it becomes a dead letter
    ├── TransportError     the bus did not take or give something
    │   ├── LogTruncated   retention overtook this reader; says how much it lost
    │   └── LogReplaced    the topic is another one than before, or shorter
    ├── StoreError         the lake or the journal could not be read or written
    │   └── CommitRefused  another writer committed first; reload and try again
    └── NotifyError        a receiver did not take a notification

Each carries a `reason` out of the few its class lists: it is the metric label, so it must stay bounded.
"""

from __future__ import annotations

from typing import ClassVar


class HallwatchError(Exception):
    """Base of the tree; `retryable` says whether the same call may succeed later."""

    reasons: ClassVar[frozenset[str]] = frozenset()
    retryable: ClassVar[bool] = False

    def __init__(self, reason: str, message: str) -> None:
        if reason not in self.reasons:
            raise ValueError(f"{type(self).__name__} has no reason {reason!r}")
        super().__init__(message)
        self.reason = reason


class ConfigError(HallwatchError):
    """Say which file, which place and which key is wrong, and what to do."""

    reasons = frozenset({"unreadable", "invalid", "unknown_key", "unknown_name", "missing", "in_use"})


class CollectError(HallwatchError):
    """A device gave no usable answer; its absence is reported, never read as zero."""

    reasons = frozenset({"unreachable", "timeout", "bad_status", "too_large", "unreadable", "no_data"})
    retryable = True


class ContractError(HallwatchError):
    """A message that cannot become rows of its stream."""

    reasons = frozenset(
        {
            "unknown_content_type",
            "missing_header",
            "bad_header",
            "wrong_type",
            "too_large",
            "unreadable_body",
            "unequal_columns",
            "bad_value",
            "missing_value",
            "wrong_world",
            "fork",
        }
    )


class TransportError(HallwatchError):
    """The bus did not take or give something; what was not acknowledged must be sent again."""

    reasons = frozenset(
        {
            "unreachable",
            "denied",
            "timeout",
            "full",
            "closed",
            "no_topic",
            "too_large",
            "no_offset",
            "truncated",
            "replaced",
        }
    )
    retryable = True


class LogTruncated(TransportError):
    """Retention deleted messages that this reader had not read."""

    retryable = False

    def __init__(self, topic: str, partition: int, wanted: int, begins: int) -> None:
        super().__init__(
            "truncated",
            f"{topic}/{partition}: offset {wanted} is gone, the log begins at {begins}: "
            f"{begins - wanted} messages were lost to retention",
        )
        self.topic, self.partition, self.wanted, self.begins = topic, partition, wanted, begins

    @property
    def lost(self) -> int:
        """How many messages this reader can never read."""
        return self.begins - self.wanted


class LogReplaced(TransportError):
    """The log behind this name is not the one read before; go on only with --accept-new-log."""

    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__("replaced", message)


class StoreError(HallwatchError):
    """The lake or the journal could not be read or written; nothing was acknowledged."""

    reasons = frozenset({"unreadable", "unwritable", "full", "schema", "refused", "damaged"})
    retryable = True


class CommitRefused(StoreError):
    """Another writer moved the stored offsets; buffers are dropped and offsets loaded again."""

    def __init__(self, message: str) -> None:
        super().__init__("refused", message)


class NotifyError(HallwatchError):
    """A receiver did not take a notification; the outbox keeps it."""

    reasons = frozenset({"unreachable", "timeout", "rejected"})
    retryable = True
