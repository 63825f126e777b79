"""Power and heat of an H100 on a cold plate: every constant of the model, and the equations between them.

    job -> work -> die and HBM power -> plate -> coolant
            ^                            |
            +---- clock <- slowdown <- temperature

Two masses, die and HBM, share a cold plate of no mass of its own (its copper is counted with the die).
"""

from __future__ import annotations

import numpy as np

from twin.workload import Activity, Flags, Floats

# -- power, watts -----------------------------------------------------------------------------------
BOARD_LIMIT_WATTS = 700.0  # default power limit (nvidia-smi -q of an H100 SXM5 80GB)
DIE_IDLE_WATTS = 27.0  # board 70 W less memory 43 W, both read on an idle H100 (same source)
HBM_IDLE_WATTS = 43.0
HBM_BUSY_WATTS = 45.0  # on top of idle: 86 W read under a memory and compute burn (same source)
DIE_BUSY_WATTS = 590.0  # on top of idle at full clock, so that the heaviest job just meets the board limit
# P ~ f V^2 and V rises roughly with the root of f in the upper range, hence between 2 and 3.
CLOCK_POWER_EXPONENT = 2.4
# While waiting for the network the SMs spin in the collective kernels: about a third of full power.
COMMUNICATING_INTENSITY = 0.35
SAVING_INTENSITY = 0.08  # while a checkpoint is copied to the host: copy engines and little else

# -- clocks, MHz ------------------------------------------------------------------------------------
SM_CLOCK_MHZ = 1980  # highest and usual under load (nvidia-smi -q, max clocks)
SM_IDLE_CLOCK_MHZ = 345  # read on an idle H100 in P0
SM_CLOCK_STEP_MHZ = 15  # NVIDIA clocks move in steps of 15 MHz
MEMORY_CLOCK_MHZ = 2619  # constant, idle or not
LOWEST_SPEED = 0.30  # the software slowdown goes no lower than about 600 MHz

# -- heat -------------------------------------------------------------------------------------------
# Supply temperature of a loop: a pod in production read 32 to 33; ASHRAE class W32.
COOLANT_CELSIUS = (30.0, 33.0)
# Plate to coolant: 20 K at 700 W. Die to plate: 12 K. Full load then reads 55 to 65 degrees with a margin
# of 20 to 30, as captured (59 to 65 degrees, margin 26 to 28).
PLATE_KELVIN_PER_WATT = 0.028
DIE_KELVIN_PER_WATT = 0.020
HBM_KELVIN_PER_WATT = 0.13  # HBM to plate: about 6 K above the die when idle, level with it when busy
# Die with lid and plate. Published accounts of a chip that loses its flow under load put its slowdown at
# 5 to 10 s: here 25 K in 7 s while 500 W are not carried away.
DIE_JOULES_PER_KELVIN = 110.0
HBM_JOULES_PER_KELVIN = 35.0  # five stacks, about a third of the mass
# The hottest spot of the die over its mean sensor: temperature plus margin is 87 idle, 85 at 630 W.
HOTSPOT_KELVIN_PER_WATT = 0.0035
SPREAD = 0.03  # one sigma of the differences between boards, in power and in thermal contact

# -- slowdown, degrees Celsius ----------------------------------------------------------------------
MAX_OPERATING_CELSIUS = 87.0  # T.Limit 0: margin 46 was read at 41 degrees
HARDWARE_SLOWDOWN_MARGIN = -2.0  # GPU Slowdown T.Limit (nvidia-smi -q, H100)
HARDWARE_RELEASE_MARGIN = -1.0  # the hardware lets go one degree lower, so it does not chatter
SOFTWARE_SPEED_PER_KELVIN = 0.12  # steep enough that a starved GPU settles between 0 and -4
HARDWARE_SPEED = 0.5  # a hardware slowdown halves the clock (NVML, clocks event reason HwSlowdown)

SUBSTEP_SECONDS = 0.25  # far below the shortest time constant, 2 s between die and plate


def demand(activity: Activity, intensity: Floats) -> tuple[Floats, Floats]:
    """Return what the work adds to the idle power of (die, HBM) at full clock, in watts per GPU."""
    work = intensity * (
        activity.computing
        + COMMUNICATING_INTENSITY * activity.communicating
        + SAVING_INTENSITY * activity.saving
    )
    memory = intensity * (activity.computing + 0.5 * activity.communicating + 0.5 * activity.saving)
    return DIE_BUSY_WATTS * work, HBM_BUSY_WATTS * memory


def speed_within_board_limit(idle_watts: Floats, die_watts: Floats, hbm_watts: Floats) -> Floats:
    """Return the highest share of the full clock at which the board stays within its limit."""
    headroom = BOARD_LIMIT_WATTS - idle_watts - hbm_watts
    share = headroom / np.maximum(die_watts, headroom)
    return np.power(share, 1.0 / CLOCK_POWER_EXPONENT)


def speed_within_thermal_limit(margin: Floats) -> Floats:
    """Return the share of the full clock to which the driver holds a GPU at this margin."""
    return np.clip(1.0 + SOFTWARE_SPEED_PER_KELVIN * np.minimum(margin, 0.0), LOWEST_SPEED, 1.0)


def hardware_slowdown(active: Flags, margin: Floats) -> Flags:
    """Return where the hardware slowdown is on, given where it was: it holds until the release margin."""
    return (margin <= HARDWARE_SLOWDOWN_MARGIN) | (active & (margin < HARDWARE_RELEASE_MARGIN))


def heat_flow(
    die_celsius: Floats, hbm_celsius: Floats, coolant_celsius: Floats, contact: Floats, plate: Floats
) -> tuple[Floats, Floats]:
    """Return (die to plate, HBM to plate), in watts; `contact` and `plate` scale the resistances.

    The plate takes the temperature at which what flows in from both masses flows out to the coolant.
    """
    from_die = 1.0 / (DIE_KELVIN_PER_WATT * contact)
    from_hbm = 1.0 / (HBM_KELVIN_PER_WATT * contact)
    to_coolant = 1.0 / (PLATE_KELVIN_PER_WATT * plate)
    plate_celsius = (from_die * die_celsius + from_hbm * hbm_celsius + to_coolant * coolant_celsius) / (
        from_die + from_hbm + to_coolant
    )
    return from_die * (die_celsius - plate_celsius), from_hbm * (hbm_celsius - plate_celsius)


def margin(die_celsius: Floats, die_watts: Floats) -> Floats:
    """Return the kelvins left to the operating limit at the hottest spot: T.Limit."""
    return MAX_OPERATING_CELSIUS - die_celsius - HOTSPOT_KELVIN_PER_WATT * die_watts


def spread(rng: np.random.Generator, count: int) -> Floats:
    """Draw how boards differ: a factor round 1, never beyond two sigma."""
    return 1.0 + SPREAD * np.clip(rng.standard_normal(count), -2.0, 2.0)
