"""What the words and registers behind an Xid say: they count more than its code.

Sources: NVIDIA Xid catalog, sheets "Xid 144-150 decode" and "Fault resolution buckets" (workflow of Xid 74), rows 13
and 154; names of the reasons for which a link went down: mstflint, register PDDR, local_reason_opcode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ingest.kernel.tables import read_table

_FIRST_NEW_LAYOUT = 575
"""Driver branch that moved the subcode to other bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What could be read; what could not is absent."""

    columns: Mapping[str, Any] = field(default_factory=dict)
    """Columns of gpu_events that replace those of the code alone."""
    follow_up: str = ""
    basis: str = "the code alone"
    """What it rests on, in words."""
    notes: tuple[str, ...] = ()
    """Where parts of the line, or the line and the table, disagree."""


_NOTHING = Decoded()


def decode_xid(code: int, detail: str, driver: str | None = None) -> Decoded:
    """Read the text behind an Xid. `driver` is a version or a branch of the kernel driver, like `575`."""
    decode = _DECODERS.get(code)
    return decode(code, detail, driver) if decode is not None and detail else _NOTHING


_UNIT = re.compile(r"([A-Z][A-Z0-9_/]{1,40})\b")
_SEVERITY = re.compile(r"[^(]{0,24}?\b(non-?fatal|fatal)\b", re.IGNORECASE)
_LINK = re.compile(r" {0,8}XC\d{1,2} {1,8}i\d{1,2} {1,8}Link {1,8}(-?\d{1,4})\b")
_REGISTERS = re.compile(r" {0,8}\(((?:0x[0-9a-fA-F]{1,8}[ ,]{0,4}){1,8})")


def _nvlink5(code: int, detail: str, driver: str | None) -> Decoded:
    """Read `UNIT Severity XC i Link NN (intrInfo errStatus ...)`, as much of it as is there."""
    unit = _UNIT.match(detail)
    if unit is None:
        return _NOTHING
    columns: dict[str, Any] = {"unit": unit[1]}
    said = _SEVERITY.match(detail, unit.end())
    if said is None:
        return Decoded(columns=columns, basis="the unit's name; the line is cut")
    columns["severity"] = "nonfatal" if said[1].lower().startswith("non") else "fatal"
    link = _LINK.match(detail, said.end())
    if link is None:
        return Decoded(columns=columns, basis="the kernel's own word; the line is cut")
    if int(link[1]) >= 0:
        columns["link"] = int(link[1])
    words = _registers(detail, link.end())
    if not words:
        return Decoded(columns=columns, basis="the kernel's own word; the registers are cut")
    return _by_table(code, columns, words, driver)


def _registers(detail: str, start: int) -> list[int]:
    found = _REGISTERS.match(detail, start)
    return [int(word, 16) for word in re.split(r"[ ,]+", found[1].strip(" ,"))] if found is not None else []


def _by_table(code: int, columns: dict[str, Any], words: list[int], driver: str | None) -> Decoded:
    interrupt, status = words[0], words[1] if len(words) > 1 else None
    old = _old_layout(code, interrupt)
    columns["subcode"] = (interrupt >> 5) & 0x1F if old else interrupt & 0x7F
    notes = []
    branch = driver_branch(driver)
    if branch is not None and (branch < _FIRST_NEW_LAYOUT) != old:
        layout = f"before R{_FIRST_NEW_LAYOUT}" if old else f"from R{_FIRST_NEW_LAYOUT} on"
        notes.append(f"the registers have the layout of drivers {layout}, but the driver is {driver}")
    row = _matching_row(code, columns["subcode"], interrupt, status, old=old)
    if row is None:
        return Decoded(
            columns=columns,
            basis="the kernel's own word; the catalog has no row for these registers",
            notes=tuple(notes),
        )
    agreed = row["severity"] == columns["severity"]
    if not agreed:
        notes.append(f"the catalog calls it {row['severity']}, the kernel {columns['severity']}")
    columns["action"] = row["action"] if agreed else "unknown"
    reason = _reason(int(row["reason"])) if row["reason"] else _NOTHING
    columns |= reason.columns
    return Decoded(
        columns=columns,
        follow_up=(reason.follow_up or row["follow_up"]) if agreed else "",
        basis="the kernel's own word and the catalog's row for these registers",
        notes=tuple(notes),
    )


def _old_layout(code: int, interrupt: int) -> bool:
    """Tell the layout by the bits themselves: the old one repeats the unit in the lowest five.

    No subcode of the new layout looks like that (see the table), so that the driver need not be known.
    """
    unit = 0 if code == 150 else code - 143
    subcodes = {row["subcode_before_575"] for row in _nvlink5_rows().get(code, ())}
    return interrupt & 0x1F == unit and str((interrupt >> 5) & 0x1F) in subcodes


def _matching_row(
    code: int, subcode: int, interrupt: int, status: int | None, *, old: bool
) -> Mapping[str, str] | None:
    column = "subcode_before_575" if old else "subcode_from_575"
    promoted = str((interrupt >> (10 if old else 7)) & 1)
    reason = str((interrupt >> 20) & 0x3F)
    for row in _nvlink5_rows().get(code, ()):
        if (
            row[column] == str(subcode)
            and row["promoted"] in ("", promoted)
            and row["reason"] in ("", reason)
            and (not row["error_status"] or status == int(row["error_status"], 16))
        ):
            return row
    return None


@cache
def _nvlink5_rows() -> Mapping[int, list[dict[str, str]]]:
    rows: dict[int, list[dict[str, str]]] = {}
    for row in read_table("nvlink5.tsv"):
        rows.setdefault(int(row["xid"]), []).append(row)
    return rows


@cache
def _reason(reason: int) -> Decoded:
    """Return what the reason of a link that went down decides: a hot peer is the hall's trouble."""
    for row in read_table("nvlink_reasons.tsv"):
        if row["reason"] == str(reason):
            columns = {"reason": row["name"]} | ({"class": row["class"]} if row["class"] != "link" else {})
            return Decoded(columns=columns, follow_up=row["follow_up"])
    return Decoded(columns={"reason": f"reason {reason}"})


_NVLINK4 = re.compile(
    r"NVLink: {0,4}(non-?fatal|fatal)? {0,4}error {1,4}detected {1,4}on {1,4}link {1,4}(\d{1,4})",
    re.IGNORECASE,
)


def _nvlink4(_code: int, detail: str, _driver: str | None) -> Decoded:
    """Read `NVLink: fatal error detected on link 14(0x0, ...)`: seven registers, of which four have meanings."""
    found = _NVLINK4.match(detail)
    if found is None:
        return _NOTHING
    columns: dict[str, Any] = {"link": int(found[2])}
    if found[1]:
        columns["severity"] = "nonfatal" if found[1].lower().startswith("non") else "fatal"
    bits = [
        row
        for register, word in enumerate(_registers(detail, found.end()))
        for row in _nvlink4_rows()
        if row["register"] == str(register) and word >> int(row["bit"]) & 1
    ]
    if not bits:
        return Decoded(columns=columns, basis="the kernel's own word")
    worst = min(bits, key=lambda row: int(row["rank"]))
    columns["reason"] = worst["name"]
    return Decoded(
        columns=columns,
        follow_up=worst["follow_up"],
        basis="the kernel's own word and the catalog's meaning of "
        + ", ".join(f"register {int(row['register']) + 1} bit {row['bit']}" for row in bits),
    )


@cache
def _nvlink4_rows() -> list[dict[str, str]]:
    return read_table("nvlink4.tsv")


_RECOVERY = re.compile(
    r"GPU recovery action changed from (0x[0-9a-fA-F]{1,4}) \(([^)]{0,64})\) to (0x[0-9a-fA-F]{1,4}) \(([^)]{0,64})"
)
_RECOVERY_ACTIONS = {
    "none": "none",
    "gpu reset required": "reset_gpu",
    "node reboot required": "restart_host",
    "os reboot": "restart_host",
    "drain p2p": "drain_p2p",
    "drain and reset": "drain_and_reset",
    "pf flr": "reset_gpu",
}


def _recovery(_code: int, detail: str, _driver: str | None) -> Decoded:
    """Read what Xid 154 asks for; it overrides what any other code asks for."""
    found = _RECOVERY.match(detail)
    if found is None:
        return Decoded(columns={"action": "unknown"}, basis="the code alone; the line is cut")
    action = _RECOVERY_ACTIONS.get(found[4].strip().lower(), "unknown")
    severity = {"none": "info", "drain_p2p": "nonfatal"}.get(action, "fatal")
    columns = {"action": action, "severity": severity, "reason": found[4].strip()}
    return Decoded(columns=columns, basis="the driver's own advice")


def is_recovered(detail: str) -> bool:
    """Tell whether an Xid 154 says that nothing needs to be done any more."""
    found = _RECOVERY.match(detail)
    return found is not None and found[4].strip().lower() == "none" and int(found[1], 16) != 0


_GPC = re.compile(r"[^(]{0,64}\(GPC (\d{1,3}), TPC (\d{1,3})")


def _graphics(_code: int, detail: str, _driver: str | None) -> Decoded:
    """Read where on the GPU a program failed: again and again at one place, it is the place."""
    found = _GPC.match(detail)
    return _NOTHING if found is None else Decoded(columns={"unit": f"GPC {found[1]} TPC {found[2]}"})


_DECODERS: Mapping[int, Callable[[int, str, str | None], Decoded]] = {
    13: _graphics,
    74: _nvlink4,
    154: _recovery,
    **dict.fromkeys(range(144, 151), _nvlink5),
}


def driver_branch(version: str | None) -> int | None:
    """Return the branch of a driver: 570 of `570.124.06`, of `570`, of `R570`."""
    found = re.match(r"[rR]?(\d{3,4})\b", version or "")
    return int(found[1]) if found is not None else None
