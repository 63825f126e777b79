"""From kernel messages to events of GPUs, switches and network cards.

Only the kernel is believed: a message of another facility is user space, whatever it says (Linux ABI dev-kmsg: user
space cannot write facility 0). A pattern is looked for where the kernel puts it, at the beginning, never inside.
Shapes of the lines: NVIDIA open-gpu-kernel-modules (nv.c, nv-pci.c, nverror), NVIDIA Xid and Fabric Manager guides;
NVIDIA/NVSentinel issue 155 (the loss told in three lines); Linux drivers/gpu/drm/amd (resets, RAS); AWS Neuron
troubleshooting guide (NEURON_HW_ERR).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ingest.kernel.bursts import Bursts, Row
from ingest.kernel.codes import MAX_CODE, find_sxid, find_xid
from ingest.kernel.decode import decode_xid, is_recovered
from ingest.kernel.line import KERNEL, KernelLine
from ingest.kernel.nic import read_carrier, read_nic
from ingest.kernel.prefilter import is_relevant

_MAX_DETAIL = 2_000  # characters
_MOST_REMEMBERED = 256

_FOLLOWS_US = 5_000_000
"""Data and severity of an SXid come within milliseconds of its first line."""

_SAME_LOSS_US = 600_000_000
"""A GPU that is lost is told once, by Xid 79 or by the other line, not by both."""

_NVRM = "NVRM: "
_PCI = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)]{1,40})\): {1,4}(\d{1,9})(?![\w.])[, ]{0,4}")
_XID_ANY = "NVRM: Xid"
_ADDRESS = re.compile(_PCI + r"$")
_USER = re.compile(r"pid=(?:'?<unknown>'?|(\d{1,10}))(?:, name=([^,]{1,64}))?(?:, {0,4}|$)")
_CAUSE = re.compile(r"caused by previous Xid (\d{1,6})\b")
_MAP = re.compile(rf"NVRM: GPU at PCI:{_PCI}: (GPU-[0-9a-fA-F-]{{8,64}})")
_LOST = re.compile(r"NVRM: GPU (\S{1,40}): GPU has fallen off the bus")
_NAMED = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]{1,40})")
_LOST_END = "fallen off the bus"
_LOADED = re.compile(
    r"NVRM: loading NVIDIA UNIX [^0-9]{0,32}(?:x86_64|x86|aarch64|ppc64le)?[^0-9]{0,32}(\d{2,4}\.\d{1,3}(?:\.\d{1,3})?)"
)
_SXID = re.compile(
    r"nvidia-nvswitch(\d{1,3}): SXid \((?:PCI:)?([^)]{1,40})\): {1,4}(\d{1,9})(?![\w.])[, ]{0,4}"
)
_SXID_WORDS = re.compile(r"(non-?fatal|fatal)\b,? {0,4}(?:Link (\d{1,4})\b)?", re.IGNORECASE)
_FABRIC_MANAGER = re.compile(
    rf"detected NVSwitch (non-fatal|fatal) error (\d{{1,6}}) on fid \d{{1,6}} on NVSwitch pci bus id {_PCI}"
    r"(?: physical id \d{1,6})?(?: port (\d{1,4}))?"
)
_NEURON = re.compile(r"(?:neuron\d{0,4}: )?NEURON_HW_ERR=([A-Z0-9_]{1,64})(?:.{0,512}?\bnd-id=(\d{1,3}))?")
_AMD = re.compile(rf"amdgpu {_PCI}: (?:amdgpu: )?")
_AMD_RESET = re.compile(r"GPU reset(?:\(\d{1,6}\))? succeeded")
_AMD_UNCORRECTED = re.compile(
    r"(?:\{\d{1,20}\} ?)?(?:socket: \d{1,3},? )?(?:die: \d{1,3},? )?(\d{1,9}) (?:new )?uncorrectable hardware errors detected in (\w{1,32}) block"
)
_AMD_FALSE = 1_000_000
"""More errors at one look than a GPU can have: the count of one that sleeps (ROCm, RAS information of idle GPUs)."""


@dataclass(slots=True, kw_only=True)
class KernelEvents:
    """What lines gave: rows with their time in `ts`, and counts of the rest by reason out of a short list."""

    gpu: list[Row] = field(default_factory=list)
    fabric: list[Row] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)


class KernelParser:
    """Reads the lines of one host in order. What it must remember fits in a cursor (`dump`), whatever the lines are."""

    def __init__(self, *, driver: str | None = None, gpus: Mapping[str, str] | None = None) -> None:
        """`gpus` is UUID by PCI address; lines of the driver add to it. `driver` is its version, likewise."""
        self.driver = driver
        self._gpus = {pci_address(pci) or pci: uuid for pci, uuid in (gpus or {}).items()}
        self._named: deque[str] = deque(maxlen=16)
        """GPUs whose loss is being told in three lines."""
        self._lost_us: dict[str, int] = {}
        self._touched: dict[str, None] = {}
        """GPUs that had an event since their last reset."""
        self._leaders_us: dict[str, int] = {}
        """When each (switch, SXid) was last told by its first line."""
        self._been_down: dict[str, None] = {}
        """Cards whose link was seen to go down: of the others, a link that comes up is a boot."""
        self._bursts = Bursts()
        self._now_us = 0
        self._found = KernelEvents()

    def feed(self, lines: Sequence[KernelLine], now_us: int, *, left_out: int = 0) -> None:
        """Read lines; `now_us` is the reader's time, and that of the lines that have none.

        `left_out` is how many others a search left out (`relevant_lines`): they are counted like those found here.
        """
        self._now_us = now_us
        for line in lines:
            if not is_relevant(line.text):
                left_out += 1
                continue
            at_us = now_us if line.ts_us is None else line.ts_us
            if line.facility is None or line.facility == KERNEL:
                self._read(line.text, at_us, line.facility)
            else:
                self._user_space(line.text, at_us)
        if left_out:
            self._found.skipped["irrelevant"] += left_out

    def events(self, now_us: int, *, final: bool = False) -> KernelEvents:
        """Return the rows since the last call, oldest first, with counts of repeats that have waited long enough.

        `final` returns all counts: there will be no further line.
        """
        for row in self._bursts.due(now_us, final=final):
            self._tell(row)
        found, self._found = self._found, KernelEvents()
        for rows in (found.gpu, found.fabric):
            rows.sort(key=lambda row: int(row["ts"]))
        return found

    def dump(self) -> dict[str, Any]:
        """Return what must survive a restart, as JSON can hold it. Ask for `events` first: they are not in it."""
        return {
            "driver": self.driver,
            "gpus": self._gpus,
            "named": list(self._named),
            "lost": self._lost_us,
            "touched": list(self._touched),
            "leaders": self._leaders_us,
            "been_down": list(self._been_down),
            "bursts": self._bursts.dump(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take up what was dumped; what cannot be read is as good as nothing."""
        try:
            gpus = {str(pci): str(uuid) for pci, uuid in saved["gpus"].items()}
            lost = {str(pci): int(at) for pci, at in saved["lost"].items()}
            leaders = {str(key): int(at) for key, at in saved["leaders"].items()}
            self._bursts.load(saved["bursts"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return
        self.driver = self.driver or saved.get("driver")
        self._gpus = gpus | self._gpus
        self._lost_us, self._leaders_us = lost, leaders
        self._named.extend(map(str, saved.get("named") or ()))
        self._touched = dict.fromkeys(map(str, saved.get("touched") or ()))
        self._been_down = dict.fromkeys(map(str, saved.get("been_down") or ()))

    # What a line is.

    def _read(self, text: str, at_us: int, facility: int | None) -> None:
        if text.startswith(_NVRM):
            self._driver_line(text, at_us)
        elif text.startswith("nvidia-nvswitch"):
            self._sxid(text, at_us)
        elif text.startswith("amdgpu "):
            self._amd(text, at_us)
        elif text.startswith(("NEURON_HW_ERR=", "neuron")):
            self._neuron(text, at_us)
        elif text.startswith("detected NVSwitch "):
            self._fabric_manager(text, at_us, facility)
        else:
            self._nic(text, at_us, "kernel_log", read_nic(text) or read_carrier(text))

    def _user_space(self, text: str, at_us: int) -> None:
        carrier = read_carrier(text)
        if carrier is None:
            self._found.skipped["user_space"] += 1
        else:
            self._nic(text, at_us, "daemon_log", carrier)

    def _driver_line(self, text: str, at_us: int) -> None:
        """Read a line of the NVIDIA driver; all but a few kinds say nothing about a fault."""
        if text.startswith(_XID_ANY):
            self._xid(text, at_us)
        elif (found := _MAP.match(text)) is not None:
            _remember(self._gpus, pci_address(found[1]) or found[1], found[2])
        elif (found := _LOST.match(text)) is not None:
            self._lost(pci_address(found[1]), text, at_us)
        elif (found := _LOADED.match(text)) is not None:
            self._loaded(found[1], text, at_us)
        elif (found := _NAMED.match(text)) is not None:
            if _LOST_END in text:
                self._lost(pci_address(found[1]), text, at_us)
            else:
                self._named.append(found[1])
        elif text.startswith("NVRM: fallen off the bus"):
            self._lost(pci_address(self._named.popleft()) if self._named else None, text, at_us)
        elif text.startswith("NVRM: installed in this system is"):
            self._named.clear()
        else:
            self._found.skipped["no_fault"] += 1

    # What a line means.

    def _xid(self, text: str, at_us: int) -> None:
        columns = _xid_columns(text, self.driver)
        if columns is None:
            self._found.rejected["xid"] += 1
            return
        pci = columns["pci_bus_id"]
        if columns["code"] == 79:
            self._told_lost(pci, at_us)
        if columns["code"] == 154 and is_recovered(columns["detail"]):
            self._reset(pci, "nothing required any more", columns["detail"], at_us)
        self._gather({**self._gpu_row("xid", pci, at_us), **columns})

    def _sxid(self, text: str, at_us: int) -> None:
        found = _SXID.match(text)
        if found is None:
            if ": SXid" in text:
                self._found.rejected["sxid"] += 1
            else:
                self._found.skipped["no_fault"] += 1
            return
        switch, code, detail = f"nvswitch{int(found[1])}", int(found[3]), text[found.end() :]
        if not 0 < code <= MAX_CODE:
            self._found.rejected["sxid"] += 1
            return
        row = self._switch_row(code, pci_address(found[2]), at_us) | {"nvswitch": switch}
        row["detail"] = detail[:_MAX_DETAIL]
        key = f"{switch} {code}"
        if detail.startswith(("Data {", "Severity ")):
            if _is_within(_FOLLOWS_US, at_us, self._leaders_us.get(key)):
                self._found.skipped["follower"] += 1
                return
            if detail.startswith("Severity "):
                row |= {"class": "follower", "severity": "info"}
        else:
            _remember(self._leaders_us, key, at_us)
        self._gather(row | _severity_and_link(_SXID_WORDS.match(detail)))

    def _fabric_manager(self, text: str, at_us: int, facility: int | None) -> None:
        """Read a line of the Fabric Manager's own log. In the kernel's log nobody but a forger writes it."""
        found = _FABRIC_MANAGER.match(text)
        if found is None or facility is not None:
            self._found.skipped["user_space" if facility is not None else "no_fault"] += 1
            return
        row = self._switch_row(int(found[2]), pci_address(found[3]), at_us)
        row |= {"evidence": "daemon_log", "detail": text[:_MAX_DETAIL]}
        row["severity"] = "nonfatal" if found[1].startswith("non") else "fatal"
        self._gather(row | {"link": int(found[4]) if found[4] else None})

    def _lost(self, pci: str | None, text: str, at_us: int) -> None:
        if _is_within(_SAME_LOSS_US, at_us, self._lost_us.get(pci or "")):
            self._found.skipped["duplicate"] += 1
            return
        _remember(self._lost_us, pci or "", at_us)
        detail = text.removeprefix(_NVRM)[:_MAX_DETAIL]
        self._gather(self._gpu_row("lost", pci, at_us) | find_xid(79).columns() | {"detail": detail})

    def _told_lost(self, pci: str | None, at_us: int) -> None:
        """Remember that an Xid 79 tells the loss, and take back the same loss told a moment ago."""
        _remember(self._lost_us, pci or "", at_us)
        rows = self._found.gpu
        kept = [row for row in rows if row["event"] != "lost" or row["pci_bus_id"] != pci]
        if len(kept) < len(rows):
            self._found.skipped["duplicate"] += len(rows) - len(kept)
            self._found.gpu = kept

    def _loaded(self, version: str, text: str, at_us: int) -> None:
        """Take a driver that loads as a reset of every GPU of the host."""
        self.driver = version
        self._named.clear()
        for pci in (*sorted({*self._gpus, *self._touched} - {""}), None):
            self._reset(pci, f"driver {version} loaded", text.removeprefix(_NVRM), at_us)

    def _reset(self, pci: str | None, why: str, detail: str, at_us: int) -> None:
        """Tell a reset, after what was gathered of that GPU: it ends what came before it.

        A reset after another with nothing between is a repeat.
        """
        ended = _TROUBLE | ({"reset"} if (pci or "") in self._touched else set())
        for row in self._bursts.end(
            lambda row: row.get("pci_bus_id") == pci and row["event"] in ended, self._now_us
        ):
            self._tell(row)
        self._lost_us.pop(pci or "", None)
        self._touched.pop(pci or "", None)
        row = self._gpu_row("reset", pci, at_us) | {"severity": "info", "class": "information"}
        self._gather(row | {"name": why, "detail": detail[:_MAX_DETAIL]})

    def _amd(self, text: str, at_us: int) -> None:
        found = _AMD.match(text)
        rest = text[found.end() :] if found is not None else ""
        pci = pci_address(found[1]) if found is not None else None
        errors = _AMD_UNCORRECTED.match(rest)
        if _AMD_RESET.match(rest):
            self._reset(pci, "GPU reset", rest, at_us)
        elif rest.startswith("GPU reset begin"):
            self._device_error(pci, "GPU hangs and is reset", rest, at_us, severity="nonfatal")
        elif errors is not None and 0 < int(errors[1]) < _AMD_FALSE:
            self._device_error(
                pci, "uncorrectable errors", rest, at_us, severity="fatal", unit=f"{errors[2]} block"
            )
        else:
            self._found.skipped["no_fault"] += 1

    def _neuron(self, text: str, at_us: int) -> None:
        found = _NEURON.match(text)
        if found is None:
            self._found.skipped["no_fault"] += 1
            return
        index = int(found[2]) if found[2] else None
        self._device_error(None, found[1], text, at_us, severity="fatal", gpu_index=index)

    def _device_error(self, pci: str | None, name: str, detail: str, at_us: int, **more: Any) -> None:
        row = self._gpu_row("device_error", pci, at_us) | {"driver_version": None, "class": "hardware"}
        self._gather(
            row | {"name": name, "action": "contact_support", "detail": detail[:_MAX_DETAIL], **more}
        )

    def _nic(self, text: str, at_us: int, evidence: str, columns: dict[str, Any] | None) -> None:
        if columns is None:
            self._found.skipped["no_fault"] += 1
            return
        nic = f"{columns['nic']} {columns.get('port')}"
        if columns["event"] == "link_down":
            _remember(self._been_down, nic, None)
        elif columns["event"] == "link_up" and nic not in self._been_down:
            self._found.skipped["link_came_up"] += 1
            return
        self._gather({"ts": at_us, "evidence": evidence, "detail": text[:_MAX_DETAIL]} | columns)

    # Rows.

    def _gpu_row(self, event: str, pci: str | None, at_us: int) -> Row:
        return {
            "ts": at_us,
            "event": event,
            "gpu_uuid": self._gpus.get(pci) if pci is not None else None,
            "pci_bus_id": pci,
            "evidence": "kernel_log",
            "driver_version": self.driver,
        }

    def _switch_row(self, code: int, pci: str | None, at_us: int) -> Row:
        return self._gpu_row("sxid", pci, at_us) | {"code": code} | find_sxid(code).columns()

    def _gather(self, row: Row) -> None:
        key = tuple(map(row.get, _KEY))
        if row["event"] in _TROUBLE:
            _remember(self._touched, row["pci_bus_id"] or "", None)
        for told in self._bursts.add(key, row, self._now_us):
            self._tell(told)

    def _tell(self, row: Row) -> None:
        (self._found.gpu if row["event"] in _GPU_EVENTS else self._found.fabric).append(row)


_TROUBLE = frozenset({"xid", "lost", "device_error"})
_GPU_EVENTS = _TROUBLE | {"sxid", "reset"}
_KEY = (
    "event",
    "pci_bus_id",
    "nvswitch",
    "nic",
    "code",
    "severity",
    "action",
    "unit",
    "link",
    "port",
    "name",
)
"""Columns in which repeats agree."""


@lru_cache(maxsize=_MOST_REMEMBERED)
def _xid_columns(text: str, driver: str | None) -> Mapping[str, Any] | None:
    """Return what an Xid line says; None where it cannot be read. Repeats of a line are read once."""
    found = _XID.match(text)
    code = int(found[2]) if found is not None else 0
    if found is None or not 0 < code <= MAX_CODE:
        return None
    columns: Row = {"code": code, "pci_bus_id": pci_address(found[1])} | find_xid(code).columns()
    detail = text[found.end() :]
    user = _USER.match(detail)
    if user is not None:
        detail = detail[user.end() :]
        columns |= {"pid": int(user[1]) if user[1] else None, "process": _process_name(user[2])}
    columns |= decode_xid(code, detail, driver).columns
    cause = _CAUSE.search(detail[:_MAX_DETAIL])
    if cause is not None and int(cause[1]) <= MAX_CODE:
        columns |= {"caused_by_code": int(cause[1]), "class": "follower"}
    return columns | {"detail": detail[:_MAX_DETAIL]}


def pci_address(text: str) -> str | None:
    """Return an address as Linux writes it, `0000:48:00.0`; None where it is none."""
    found = _ADDRESS.match(text.strip())
    if found is None:
        return None
    domain, _, rest = found[1].lower().partition(":")
    return f"{int(domain, 16):04x}:{rest if '.' in rest else f'{rest}.0'}"


def _process_name(name: str | None) -> str | None:
    return None if name is None or name.strip("'") == "<unknown>" else name


def _severity_and_link(words: re.Match[str] | None) -> dict[str, Any]:
    if words is None:
        return {}
    severity = "nonfatal" if words[1].lower().startswith("non") else "fatal"
    return {"severity": severity} | ({"link": int(words[2])} if words[2] else {})


def _is_within(window_us: int, at_us: int, then_us: int | None) -> bool:
    return then_us is not None and abs(at_us - then_us) <= window_us


def _remember(memory: dict[str, Any], key: str, value: Any) -> None:
    memory.pop(key, None)
    memory[key] = value
    while len(memory) > _MOST_REMEMBERED:
        del memory[next(iter(memory))]
