"""A handle moves what it names and puts it back."""

from __future__ import annotations

import numpy as np
import pytest

from twin.handles import HANDLES
from twin.largehall import LargeHall
from twin.site import draw_site


def _moved(hall: LargeHall) -> dict[str, object]:
    """Return every quantity that some handle moves."""
    loops, network, trust, telemetry = hall.loops, hall.network, hall.trust, hall.telemetry
    return {
        "pumps": loops.pump_efficiency.tolist(),
        "valves": loops.rack_opening.tolist(),
        "plates": loops.plate_opening.tolist(),
        "water": loops.facility_offset_kelvin,
        "air": loops.room_humidity,
        "leaks": loops.leak_liters_per_minute.tolist(),
        "optics": network.attenuation_decibel.tolist(),
        "light": network.connected.tolist(),
        "cards": network.installed.tolist(),
        "wear": hall.wear_per_second.tolist(),
        "gpus": hall.chips.present.tolist(),
        "hung": hall.hung.tolist(),
        "nvlinks": hall.nvlink_up.tolist(),
        "clocks": hall.chips.clock_ratio.tolist(),
        "caps": hall.chips.rack_cap_watts.tolist(),
        "power": hall.powered.tolist(),
        "proofs": (trust.silent | trust.replays | trust.forges | trust.debug).tolist(),
        "ages": trust.age_seconds.tolist(),
        "modes": trust.gpu_mode_on.tolist(),
        "launch": list(trust.host_data),
        "collectors": (telemetry.silent | telemetry.cloned | telemetry.doubled).tolist(),
        "frozen": telemetry.frozen.tolist(),
        "steps": telemetry.coarse_celsius.tolist(),
        "times": np.round(telemetry.clock_offset_seconds, 9).tolist(),
        "held": telemetry.held_partition,
        "wanted": hall.tasks.wanted.tolist(),
        "saves": hall.tasks.saves_stall.tolist(),
        "firmware": trust.snp_version.tolist(),
        "chips": list(trust.chip_ids),
        "starts": telemetry.starts.tolist(),
        "skips": telemetry.skips.tolist(),
        "boots": (hall.booting_seconds > 0).tolist(),
    }


_LASTS = {"chip-id", "firmware-upgrade", "collector-restart", "collector-rolling-restart", "sequence-hole"}
"""What these did stays: there is nothing to put back."""


@pytest.mark.parametrize("name", sorted(HANDLES))
def test_a_handle_moves_the_hall_and_its_end_puts_back_what_it_moved(name: str) -> None:
    hall, handle = LargeHall(draw_site(gpus=512, seed=3)), HANDLES[name]
    before = _moved(hall)
    target, magnitude = hall.targets(handle)[0], handle.high
    handle.begin(hall, target, magnitude)
    moved = _moved(hall) != before
    for age in range(100):
        handle.hold(hall, target, magnitude, float(age))
        hall.advance(1)
        moved |= _moved(hall) != before
    assert moved
    handle.end(hall, target, magnitude, 100.0)
    hall.advance(120)
    if name not in _LASTS:
        assert _moved(hall) == before
