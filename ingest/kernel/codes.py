"""What Xid and SXid codes mean, by the tables beside this file.

Classes and actions follow the columns "Immediate Action" and "Investigatory Action" of the NVIDIA Xid catalog and the
lists of NVIDIA's Fabric Manager user guide, appendix D. Where others disagree, the table says who says what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ingest.kernel.tables import read_table

MAX_CODE = 100_000
"""A larger number is no code: what the column of gpu_events holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A row of the table of Xids or SXids; of a code that is in none, class and severity are `unknown`."""

    kind: Literal["xid", "sxid"]
    code: int
    name: str | None
    fault_class: str
    severity: str
    action: str
    mnemonic: str = ""
    follow_up: str = ""
    """What to do when it comes again."""
    architectures: tuple[str, ...] = ()
    recovery_action_from: int | None = None
    """Driver branch from which an Xid 154 comes with it."""
    relation: str = ""
    """`leader` or `follower`, where it comes with others."""
    scope: str = ""
    """Of an SXid: the guide's list, `always_fatal`, `potentially_fatal`, `nonfatal`, `host`; else `unlisted`."""
    disagreements: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def columns(self) -> dict[str, Any]:
        """Return the columns of gpu_events that the code alone decides."""
        return {
            "name": self.name,
            "severity": self.severity,
            "class": self.fault_class,
            "action": self.action,
        }


def find_xid(code: int) -> Code:
    """Return what an Xid means."""
    return _xids().get(code) or _unknown("xid", code)


def find_sxid(code: int) -> Code:
    """Return what an SXid means."""
    return _sxids().get(code) or _unknown("sxid", code)


def _unknown(kind: Literal["xid", "sxid"], code: int) -> Code:
    return Code(kind=kind, code=code, name=None, fault_class="unknown", severity="unknown", action="unknown")


@cache
def _xids() -> Mapping[int, Code]:
    return {
        int(row["code"]): Code(
            kind="xid",
            mnemonic=row["mnemonic"],
            follow_up=row["follow_up"],
            architectures=tuple(row["architectures"].split()),
            recovery_action_from=int(row["recovery_action_from"]) if row["recovery_action_from"] else None,
            relation=row["relation"],
            **_common(row),
        )
        for row in read_table("xid.tsv")
    }


@cache
def _sxids() -> Mapping[int, Code]:
    return {
        int(row["code"]): Code(kind="sxid", scope=row["scope"], **_common(row))
        for row in read_table("sxid.tsv")
    }


def _common(row: Mapping[str, str]) -> dict[str, Any]:
    return {
        "code": int(row["code"]),
        "name": row["name"],
        "fault_class": row["class"],
        "severity": row["severity"],
        "action": row["action"],
        "disagreements": tuple(row["disagreements"].split(" | ")) if row["disagreements"] else (),
        "sources": tuple(row["sources"].split("; ")),
    }
