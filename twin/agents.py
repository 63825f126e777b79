"""The agent in the confidential machine of every host: it asks its processor for a report and hands it in.

What can be wrong with a host is its state; what that means is for others to find out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from contract.files import write_whole
from twin.evidence import Guest, Maker, Processor, parcel
from twin.plan import Plan

State: TypeAlias = Literal[
    "sound",
    "debug",
    "altered",
    "other_image",
    "old_firmware",
    "new_firmware",
    "uncertified",
    "stuck",
    "replayed",
    "silent",
]
"""`debug`: its machine is open to a debugger; `altered`: a byte changes after the signature; `other_image`: something else
was started; `old_firmware`, `new_firmware`: the host went back to firmware of before, or on to the next; `uncertified`: the certificate does not come along;
`stuck`: it hands in its last report again and again; `replayed`: so does somebody in its name, as if made now; `silent`: it hands in nothing."""

FIRMWARE = {"bootloader": 4, "tee": 0, "snp": 27, "microcode": 219}
FIRMWARE_BEFORE = {"bootloader": 4, "tee": 0, "snp": 24, "microcode": 211}
FIRMWARE_AFTER = {"bootloader": 4, "tee": 0, "snp": 28, "microcode": 222}

_MEASUREMENT = 0x90
"""Where it begins in a report."""


class Agents:
    """The agents of a plan, in plan order, and the maker whose processors they ask."""

    def __init__(self, plan: Plan, start_us: int, *, every_seconds: float = 60) -> None:
        """Each host hands in a report every `every_seconds`; hosts take turns."""
        self.maker = Maker("Milan", start_us)
        self.states: list[State] = ["sound"] * len(plan.hosts)
        self._hosts = plan.hosts
        self._every_us = round(every_seconds * 1e6)
        self._due_us = [
            start_us + self._every_us * (number + 1) // max(1, len(plan.hosts))
            for number in range(len(plan.hosts))
        ]
        self._processors = [
            Processor(maker=self.maker, chip_id=hashlib.sha512(host.name.encode()).digest(), tcb=FIRMWARE)
            for host in plan.hosts
        ]
        self._last: dict[int, tuple[bytes, int]] = {}

    @property
    def image(self) -> bytes:
        """The measurement of the image that every host starts: 48 bytes."""
        return Guest.named("").measurement

    def due(self, now_us: int) -> Sequence[tuple[str, bytes]]:
        """Return what is handed in by now, as host and parcel; each is due once."""
        handed_in = []
        for number, host in enumerate(self._hosts):
            if now_us < self._due_us[number]:
                continue
            self._due_us[number] = max(self._due_us[number] + self._every_us, now_us)
            if self.states[number] != "silent":
                handed_in.append((host.name, self._parcel(number, now_us)))
        return handed_in

    def write(self, folder: Path, now_us: int) -> int:
        """Put what is due into `folder`, each whole at once as `HOST/TIME.evidence`; return how many."""
        parcels = self.due(now_us)
        for host, body in parcels:
            (folder / host).mkdir(parents=True, exist_ok=True)
            part = folder / host / f"{now_us}.part"
            write_whole(part, body)
            os.utime(
                part, ns=(now_us * 1000, now_us * 1000)
            )  # a hall that is simulated has a time of its own
            part.replace(part.with_suffix(".evidence"))
        return len(parcels)

    def _parcel(self, number: int, now_us: int) -> bytes:
        state, host, chip = self.states[number], self._hosts[number].name, self._processors[number]
        others = {"old_firmware": FIRMWARE_BEFORE, "new_firmware": FIRMWARE_AFTER}
        firmware = others.get(state, FIRMWARE)
        if chip.tcb != firmware:
            chip.load(firmware)
        if state in ("stuck", "replayed") and number in self._last:
            report, taken_us = self._last[number]
            taken_us = now_us if state == "replayed" else taken_us
        else:
            report, taken_us = self._report(state, host, chip, now_us), now_us
        self._last[number] = report, taken_us
        certificates = {} if state == "uncertified" else {"vcek.der": chip.certificate}
        return parcel(host, report, certificates, taken_us)

    @staticmethod
    def _report(state: State, host: str, chip: Processor, now_us: int) -> bytes:
        image = "other image" if state == "other_image" else "image"
        guest = Guest.named(host, image=image, debug=state == "debug")
        report = bytearray(chip.report(guest, hashlib.sha512(f"{host} {now_us}".encode()).digest()))
        if state == "altered":
            report[_MEASUREMENT] ^= 1
        return bytes(report)
