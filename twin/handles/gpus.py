"""GPUs: their memory, bus, processor, links, clock and power."""

# ruff: noqa: ARG001 - every act is given what any of them needs
from __future__ import annotations

import numpy as np

from twin.handles.handle import Handle, Move, set_by, switched
from twin.handles.where import busy_gpu, busy_rack
from twin.largehall import LargeHall
from twin.site import GPUS_PER_HOST


def _die(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.pcie_dying[gpu] = True
    if age >= magnitude:
        hall.lose_gpu(gpu)


def _replace(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.pcie_dying[gpu] = False
    if not hall.chips.present[gpu]:
        hall.chips.present[gpu] = True
        hall.reboot(gpu // GPUS_PER_HOST)


def _cap(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    gpus = np.repeat(hall.site.rack_of_host == rack, GPUS_PER_HOST)
    hall.chips.rack_cap_watts[rack] = magnitude * hall.chips.board["limit_watts"][gpus].sum()


def _uncap(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    hall.chips.rack_cap_watts[rack] = np.inf


HANDLES = (
    Handle(
        name="hbm-wear",
        entity_kind="gpu",
        what="a memory stack wears out",
        low=0.5,
        high=3.0,
        unit="errors/s",
        move=set_by(lambda hall: hall.wear_per_second, lambda _hall, magnitude: magnitude, 0.0),
        strikes=busy_gpu,
    ),
    Handle(
        name="gpu-presence",
        entity_kind="gpu",
        what="a GPU falls off its bus, after errors on it",
        low=10.0,
        high=60.0,
        unit="s of errors",
        move=Move(hold=_die, end=_replace),
        strikes=busy_gpu,
    ),
    Handle(
        name="gsp-hang",
        entity_kind="gpu",
        what="the system processor of a GPU hangs",
        move=switched(lambda hall: hall.hung, True, back=False),
        strikes=busy_gpu,
    ),
    Handle(
        name="nvlink-failure",
        entity_kind="gpu",
        what="an NVLink breaks",
        move=switched(lambda hall: hall.nvlink_up, False, back=True),
        strikes=busy_gpu,
    ),
    Handle(
        name="gpu-clock",
        entity_kind="gpu",
        what="a GPU runs slower than the others",
        low=0.15,
        high=0.5,
        unit="share lost",
        move=set_by(lambda hall: hall.chips.clock_ratio, lambda _hall, magnitude: 1.0 - magnitude, 1.0),
        strikes=busy_gpu,
    ),
    Handle(
        name="rack-power-cap",
        entity_kind="rack",
        what="a rack may draw less",
        low=0.4,
        high=0.65,
        unit="share of its limits",
        move=Move(begin=_cap, end=_uncap),
        strikes=busy_rack,
    ),
)
