"""From the codes a page shows to events: what is new against what was shown before.

A gauge of the last code keeps it for ever and shows neither a repeat nor a code that another followed at once. A
count over a window shows repeats, but not one that comes as another leaves the window. So an event says "at least
this happened"; the kernel log says what.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from ingest.gpu.page import Device, Page
from ingest.kernel.codes import find_sxid, find_xid

_MOST_DEVICES = 4_096


@dataclass(slots=True)
class _Shown:
    """What a device showed last."""

    codes: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    """Codes the window may be about to count; not kept across restarts."""


class CodeMemory:
    """Remembers which codes were told, so that each is told once, across restarts too."""

    def __init__(self) -> None:
        self._shown: dict[Device, _Shown] = {}

    def events(self, page: Page) -> list[dict[str, Any]]:
        """Return rows of gpu_events for what the page newly shows. A device the page is silent about stays as it was."""
        events: list[dict[str, Any]] = []
        for device in {**page.counts, **page.codes}:
            shown = self._shown.pop(device, None) or _Shown()
            about = _about(page, device)
            counts = page.counts.get(device)
            if counts is not None:
                events += [_meant(about | event) for event in _counted(shown, counts)]
            codes = page.codes.get(device)
            if codes is not None:
                new = _new_codes(shown, set(codes), counted=counts is not None)
                events += [_meant(about | _last_code(code, codes[code])) for code in new]
            if shown.codes or shown.counts or shown.awaited:
                self._shown[device] = shown
        while len(self._shown) > _MOST_DEVICES:
            del self._shown[next(iter(self._shown))]
        return events

    def dump(self) -> bytes:
        """Return the memory as a cursor."""
        return orjson.dumps(
            [
                [*device, sorted(shown.codes), sorted(shown.counts.items())]
                for device, shown in sorted(self._shown.items(), key=lambda item: tuple(map(str, item[0])))
            ]
        )

    def load(self, cursor: bytes) -> None:
        """Take up a dumped memory; one that cannot be read leaves it empty."""
        self._shown = {}
        try:
            entries = orjson.loads(cursor)
            self._shown = {
                Device(str(host), kind, name if name is None else str(name)): _Shown(
                    codes={int(code) for code in codes},
                    counts={int(code): int(count) for code, count in counts},
                )
                for host, kind, name, codes, counts in entries
            }
        except (ValueError, TypeError):
            return


def _counted(shown: _Shown, counts: dict[int, int]) -> Iterable[dict[str, Any]]:
    before, shown.counts = shown.counts, {code: count for code, count in counts.items() if count}
    for code, count in shown.counts.items():
        rise = count - before.get(code, 0)
        if rise > 0:
            yield {
                "event": "xid",
                "code": code,
                "evidence": "window_count",
                "occurrences": rise,
                "detail": None,
            }


def _new_codes(shown: _Shown, codes: set[int], *, counted: bool) -> list[int]:
    """Return the codes to tell, and remember them.

    Where a window counts too, it tells of every code it covers; one it does not cover gets a second look first,
    because gauge and window are read one after the other.
    """
    new = codes - shown.codes - set(shown.counts)
    if counted:
        new, shown.awaited = new & shown.awaited, new - shown.awaited
    else:
        shown.awaited = set()
    shown.codes = codes - shown.awaited
    return sorted(new)


def _last_code(code: int, detail: str | None) -> dict[str, Any]:
    return {"code": code, "evidence": "last_code", "occurrences": 1, "detail": detail}


def _meant(event: dict[str, Any]) -> dict[str, Any]:
    """Add what the code means. The words that may say more are in the kernel log; of a switch the field says it."""
    if event["event"] == "xid":
        return event | find_xid(event["code"]).columns()
    meant = event | find_sxid(event["code"]).columns()
    return (
        meant | {"severity": str(event["detail"]).replace("-", "")} if event["detail"] in _FIELDS else meant
    )


_FIELDS = ("fatal", "non-fatal")
"""Which of its two fields an SXid was in."""


def _about(page: Page, device: Device) -> dict[str, Any]:
    if device.kind == "switch":
        return {"host": device.host, "event": "sxid", "gpu_uuid": None, "nvswitch": device.name}
    row = page.gpus.get(device)
    known = row.values() if row is not None else {}
    return {
        "host": device.host,
        "event": "xid",
        "gpu_uuid": device.name,
        "gpu_index": known.get("gpu_index"),
        "pci_bus_id": known.get("pci_bus_id"),
    }
