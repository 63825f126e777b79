"""Pumps, plates, valves, water, leaks and the air of the room."""

# ruff: noqa: ARG001 - every act is given what any of them needs
from __future__ import annotations

from twin.handles.handle import Handle, Move, grown, lowered, set_by
from twin.handles.where import busy_liquid_host, liquid_rack
from twin.largehall import LargeHall
from twin.loops import ROOM_HUMIDITY


def _warm_water(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.loops.facility_offset_kelvin = grown(magnitude, age, 90.0)


def _cool_water(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.loops.facility_offset_kelvin = 0.0


def _mop(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    hall.dry(rack)


def _wet_air(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.loops.room_humidity = ROOM_HUMIDITY + grown(magnitude, age, 60.0)


def _dry_air(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.loops.room_humidity = ROOM_HUMIDITY


HANDLES = (
    Handle(
        name="pump-efficiency",
        entity_kind="cdu",
        what="a worn pump turns slower",
        low=0.45,
        high=0.85,
        unit="share lost",
        move=lowered(lambda hall: hall.loops.pump_efficiency, over_seconds=20.0),
    ),
    Handle(
        name="plate-fouling",
        entity_kind="host",
        what="the plates of a host let less through",
        low=0.6,
        high=0.9,
        unit="share lost",
        move=lowered(lambda hall: hall.loops.plate_opening, over_seconds=30.0),
        strikes=busy_liquid_host,
    ),
    Handle(
        name="rack-valve",
        entity_kind="rack",
        what="the valve of a rack closes",
        low=0.5,
        high=0.85,
        unit="share lost",
        move=lowered(lambda hall: hall.loops.rack_opening, over_seconds=10.0),
        strikes=liquid_rack,
    ),
    Handle(
        name="facility-supply",
        entity_kind="hall",
        what="facility water becomes warmer",
        low=12.0,
        high=20.0,
        unit="K",
        move=Move(hold=_warm_water, end=_cool_water),
    ),
    Handle(
        name="leak-rate",
        entity_kind="rack",
        what="a hose of a rack drips or runs",
        low=0.1,
        high=2.0,
        unit="L/min",
        move=Move(
            begin=set_by(
                lambda hall: hall.loops.leak_liters_per_minute, lambda _hall, magnitude: magnitude, 0.0
            ).begin,
            end=_mop,
        ),
        strikes=liquid_rack,
    ),
    Handle(
        name="room-humidity",
        entity_kind="hall",
        what="the air becomes wetter",
        low=0.45,
        high=0.6,
        unit="share",
        move=Move(hold=_wet_air, end=_dry_air),
    ),
)
