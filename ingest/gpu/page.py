"""From the samples of a page to its entities: whole GPUs, MIG instances, links, switches, and the codes they show.

Labels: dcgm-exporter internal/pkg/rendermetrics/render_metrics.go (entities) and internal/pkg/transformation/const.go
(workloads, old and new); `exported_*`: Prometheus documentation, "scrape_config", honor_labels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ingest.gpu.exposition import Labels, Sample
from ingest.gpu.fields import (
    DRIVER_VERSIONS,
    GPU_FIELDS,
    LINK_FIELDS,
    NUMBERED_LINK_FIELDS,
    SWITCH_FIELDS,
    XID_COUNTS,
    Field,
    is_blank,
    is_blank_text,
)

_LONGEST_UUID = 96
_LONGEST_NAME = 64
_LONGEST_HOST = 255
_HIGHEST_NUMBER = 1_000  # of an instance or a link
_HIGHEST_CODE = {"gpu": 1_000, "switch": 100_000}
_LIFTED = 100  # rank of what only an instance's row says of the whole GPU: below every whole GPU's row
_MOST_CACHED = 8_192
_MOST_DEVICES = 4_096
_EXPORTER = "dcgm-exporter"

_WORKLOAD_LABELS = {
    "namespace": ("namespace", "pod_namespace"),
    "pod": ("pod", "pod_name"),
    "container": ("container", "container_name"),
}


class Device(NamedTuple):
    """A GPU or a switch; without a name where a series names none."""

    host: str
    kind: Literal["gpu", "switch"]
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entity:
    """Whom a series is about, as its labels say."""

    kind: Literal["gpu", "instance", "gpu_link", "switch", "switch_link", "other", "unnamed"]
    device: Device
    number: int = 0
    """Of the instance or the link."""
    gpu: Mapping[str, Any] = field(default_factory=dict)
    """What it says of the row of the whole GPU."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """What it says of its own row, where that is another."""


class Entities:
    """Finds the entity of a series; remembers it from page to page."""

    def __init__(self, host: str, *, host_from_label: bool = False) -> None:
        self._host = host
        self._host_from_label = host_from_label
        self._known: dict[Labels, Entity] = {}

    def of(self, labels: Labels) -> Entity:
        """Return the entity: `unnamed` where the labels name none, or one that cannot be."""
        entity = self._known.get(labels)
        if entity is None:
            if len(self._known) >= _MOST_CACHED:
                self._known.clear()
            entity = self._known[labels] = self._read(labels.values)
        return entity

    def _read(self, labels: Mapping[str, str]) -> Entity:
        host = self._host_of(labels)
        switch, uuid = labels.get("nvswitch", ""), _first(labels, "UUID", "uuid", "gpu_uuid") or ""
        entity: Entity | None = None
        if "cpu" in labels or "cpucore" in labels:
            entity = Entity(kind="other", device=Device(host, "gpu", None))
        elif switch and len(switch) <= _LONGEST_NAME:
            entity = _switch(labels, Device(host, "switch", switch))
        elif uuid and len(uuid) <= _LONGEST_UUID:
            entity = _gpu(labels, Device(host, "gpu", uuid))
        return entity or Entity(kind="unnamed", device=Device(host, "gpu", None))

    def _host_of(self, labels: Mapping[str, str]) -> str:
        if not self._host_from_label:
            return self._host
        return (_first(labels, "Hostname", "hostname") or self._host)[:_LONGEST_HOST]


def _switch(labels: Mapping[str, str], device: Device) -> Entity | None:
    own = {"host": device.host, "nvswitch": device.name}
    if "nvlink" not in labels:
        return Entity(kind="switch", device=device, own=own)
    link = _number(labels["nvlink"])
    if link is None:
        return None
    return Entity(kind="switch_link", device=device, number=link, own=own | {"link": link})


def _gpu(labels: Mapping[str, str], device: Device) -> Entity | None:
    identity = {"host": device.host, "gpu_uuid": device.name, "gpu_index": _number(labels.get("gpu"))}
    if "nvlink" in labels:
        link = _number(labels["nvlink"])
        if link is None:
            return None
        return Entity(kind="gpu_link", device=device, number=link, own=identity | {"link": link})
    identity["pci_bus_id"] = _first(labels, "pci_bus_id")
    gpu = identity | {
        "model": _first(labels, "modelName", "model_name"),
        "driver_version": _first(labels, *DRIVER_VERSIONS),
    }
    workload = _workload(labels)
    if "GPU_I_ID" not in labels:
        return Entity(kind="gpu", device=device, gpu=gpu | workload)
    instance = _number(labels["GPU_I_ID"])
    if instance is None:
        return None
    own = identity | {"instance": instance, "profile": _first(labels, "GPU_I_PROFILE")} | workload
    return Entity(kind="instance", device=device, number=instance, gpu=gpu, own=own)


def _workload(labels: Mapping[str, str]) -> dict[str, str | None]:
    """Return who holds the GPU; nobody where the labels tell of the exporter's own pod.

    A Prometheus server that adds the labels of its target moves the workload's to `exported_*`.
    """
    workload: dict[str, str | None] = {"hpc_job": _first(labels, "hpc_job")}
    exported = {column: labels.get(f"exported_{column}") for column in _WORKLOAD_LABELS}
    if any(value is not None for value in exported.values()):
        return workload | {column: value or None for column, value in exported.items()}
    found = {column: _first(labels, *names) for column, names in _WORKLOAD_LABELS.items()}
    if _EXPORTER in (found["pod"] or "") or _EXPORTER in (found["container"] or ""):
        return workload
    return workload | found


def _first(labels: Mapping[str, str], *names: str) -> str | None:
    """Return the first label that says something."""
    for name in names:
        value = labels.get(name)
        if value is not None and not is_blank_text(value):
            return value
    return None


def _number(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 4):
        return None
    number = int(text)
    return number if number <= _HIGHEST_NUMBER else None


class Row:
    """One row in the making."""

    __slots__ = ("_about", "_cells", "_last")

    def __init__(self) -> None:
        self._about: dict[str, Any] = {}
        self._cells: dict[str, tuple[int, Any]] = {}
        self._last: Mapping[str, Any] | None = None

    def describe(self, about: Mapping[str, Any]) -> None:
        """Take what labels say and no label said before."""
        if about is self._last:
            return
        self._last = about
        for column, value in about.items():
            if value is not None and self._about.get(column) is None:
                self._about[column] = value

    def put(self, column: str, value: Any, rank: int) -> None:
        """Set a value, unless one of the same or a better rank is there."""
        held = self._cells.get(column)
        if held is None or rank < held[0]:
            self._cells[column] = (rank, value)

    def values(self) -> dict[str, Any]:
        """Return the row."""
        return {**self._about, **{column: value for column, (_, value) in self._cells.items()}}


class Page:
    """What one page says, by entity. Built by feeding it samples."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities
        self.gpus: dict[Device, Row] = {}
        self.instances: dict[tuple[Device, int], Row] = {}
        self.links: dict[tuple[Device, int], Row] = {}
        self.switches: dict[Device, Row] = {}
        self.codes: dict[Device, dict[int, str | None]] = {}
        """The last codes a device shows, with what the exporter says of each; empty where it shows none."""
        self.counts: dict[Device, dict[int, int]] = {}
        """How often each code occurred in the exporter's window, where it counts them."""
        self.rejected: Counter[str] = Counter()
        """Samples that cannot be used: no_identity, not_whole, too_many_devices."""
        self.skipped: Counter[str] = Counter()
        """Samples without anything to keep: blank, unknown_state, unmapped_family, other_entity."""
        self._devices: set[Device] = set()

    def feed(self, samples: Iterable[Sample]) -> None:
        """Take in samples, one per series."""
        for sample in samples:
            entity = self._entities.of(sample.labels)
            if not self._admit(entity.device):
                self.rejected["too_many_devices"] += 1
                continue
            match entity.kind:
                case "gpu" | "instance":
                    self._feed_gpu(sample, entity)
                case "gpu_link" | "switch_link":
                    self._link(entity.device, entity.number, entity.own)
                    self._put(self.links[entity.device, entity.number], LINK_FIELDS, sample)
                case "switch":
                    self._feed_switch(sample, entity)
                case "other":
                    self.skipped["other_entity"] += 1
                case "unnamed":
                    self._feed_unnamed(sample, entity)

    def _admit(self, device: Device) -> bool:
        """Tell whether a device is of this page: one that names a new one in every line has no end of them."""
        if device not in self._devices:
            if len(self._devices) >= _MOST_DEVICES:
                return False
            self._devices.add(device)
        return True

    def _feed_gpu(self, sample: Sample, entity: Entity) -> None:
        row = self.gpus.get(entity.device)
        if row is None:
            row = self.gpus[entity.device] = Row()
        row.describe(entity.gpu)
        field = GPU_FIELDS.get(sample.family)
        if entity.kind == "instance":
            instance = self.instances.setdefault((entity.device, entity.number), Row())
            instance.describe(entity.own)
            if field is not None and field.own:
                row = instance
        if field is not None:
            lifted = _LIFTED if entity.kind == "instance" else 0
            self._set(row, field, sample, lifted)
            if field.column == "last_xid":
                self._note_code(entity.device, sample)
        elif (field := NUMBERED_LINK_FIELDS.get(sample.family)) is not None:
            identity = {name: entity.gpu[name] for name in ("host", "gpu_uuid", "gpu_index")}
            link = field.link or 0
            self._set(self._link(entity.device, link, identity | {"link": link}), field, sample)
        elif sample.family in XID_COUNTS:
            self._count_code(entity.device, sample)
        elif sample.family in DRIVER_VERSIONS:
            row.describe({"driver_version": None if is_blank_text(sample.text) else sample.text})
        else:
            self.skipped["unmapped_family"] += 1

    def _feed_switch(self, sample: Sample, entity: Entity) -> None:
        row = self.switches.setdefault(entity.device, Row())
        row.describe(entity.own)
        field = self._put(row, SWITCH_FIELDS, sample)
        if field is not None and field.column.endswith("_sxid"):
            self._note_code(
                entity.device, sample, "fatal" if field.column == "last_fatal_sxid" else "non-fatal"
            )

    def _feed_unnamed(self, sample: Sample, entity: Entity) -> None:
        field = GPU_FIELDS.get(sample.family)
        if field is None or field.column != "last_xid" or not self._note_code(entity.device, sample):
            self.rejected["no_identity"] += 1

    def _link(self, device: Device, number: int, about: Mapping[str, Any]) -> Row:
        row = self.links.setdefault((device, number), Row())
        row.describe(about)
        return row

    def _put(self, row: Row, fields: Mapping[str, Field], sample: Sample) -> Field | None:
        field = fields.get(sample.family)
        if field is None:
            self.skipped["unmapped_family"] += 1
        else:
            self._set(row, field, sample)
        return field

    def _set(self, row: Row, field: Field, sample: Sample, lifted: int = 0) -> None:
        value: Any = sample.value
        if is_blank(value, counts=field.counts) or (field.zero_is_blank and value == 0):
            self.skipped["blank"] += 1
            value = None
        elif field.words is not None:
            value = field.words.get(value)
            if value is None:
                self.skipped["unknown_state"] += 1
        elif (field.counts or field.bits) and not isinstance(value, int):
            value = _whole(value)
            if value is None:
                self.rejected["not_whole"] += 1
        row.put(field.column, value, field.rank + lifted)

    def _note_code(self, device: Device, sample: Sample, detail: str | None = None) -> bool:
        """Note a code that a device shows; return whether there is one."""
        code = _code(sample.value, device.kind)
        if code is None:
            return False
        codes = self.codes.setdefault(device, {})
        if code:
            codes.setdefault(code, detail or _first(sample.labels.values, "err_msg"))
        return code > 0

    def _count_code(self, device: Device, sample: Sample) -> None:
        counts = self.counts.setdefault(device, {})
        code = _number(sample.labels.values.get("xid"))
        if not code:
            return  # the series of a GPU without any Xid in the window has no such label
        if is_blank(sample.value, counts=False) or not 0 <= sample.value <= 1_000_000:
            self.skipped["blank"] += 1
            return
        counts[code] = max(counts.get(code, 0), int(sample.value))


def _whole(value: float) -> int | None:
    """Return a whole number written as a float, like 2.5e9; None for what is none, or beyond 64 bits."""
    return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 2**63 else None


def _code(value: float, kind: str) -> int | None:
    """Return a code or 0 for none; None where the value is no code at all."""
    if not math.isfinite(value) or value != int(value) or not 0 <= value <= _HIGHEST_CODE[kind]:
        return None
    return int(value)
