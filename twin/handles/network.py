"""Optics, links and network cards."""

from __future__ import annotations

from twin.handles.handle import Handle, Move, raised, switched
from twin.handles.where import busy_port
from twin.largehall import LargeHall

_LINK = switched(lambda hall: hall.network.connected, False, back=True)
_DARK_SECONDS = 3.0


def _flap(hall: LargeHall, port: int, magnitude: float, age: float) -> None:
    hall.network.connected[port] = age % magnitude >= _DARK_SECONDS


HANDLES = (
    Handle(
        name="optic-attenuation",
        entity_kind="port",
        what="an optic is dirty",
        low=4.8,
        high=6.5,
        unit="dB",
        move=raised(lambda hall: hall.network.dirt_decibel, over_seconds=60.0),
        strikes=busy_port,
    ),
    Handle(
        name="link-flap",
        entity_kind="port",
        what="a link loses its light again and again",
        low=30.0,
        high=120.0,
        unit="s between",
        move=Move(hold=_flap, end=_LINK.end),
        strikes=busy_port,
    ),
    Handle(
        name="link-state",
        entity_kind="port",
        what="a link has no light",
        move=_LINK,
        strikes=busy_port,
    ),
    Handle(
        name="nic-failure",
        entity_kind="port",
        what="a network card dies",
        move=switched(lambda hall: hall.network.installed, False, back=True),
        strikes=busy_port,
    ),
)
