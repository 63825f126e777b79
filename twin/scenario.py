"""What will be done to the hall and when, and the labels that keep the truth about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np

from twin.cdu import LEAKING_DETECTOR_PATH
from twin.faults import KINDS, Magnitude, Target
from twin.hall import Hall
from twin.host_tree import DIMMS
from twin.plan import Draw, Plan
from twin.sensors import Readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One fault or decoy: what, on which host (and which of its GPUs), from when, how strong."""

    name: str
    host: str
    onset_seconds: float
    gpu_index: int = 0
    magnitude: Magnitude = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that is done to a hall in one run."""

    injections: tuple[Injection, ...] = ()


@dataclass(slots=True, kw_only=True)
class Label:
    """The truth about one injection; times are microseconds UTC of the twin.

    `shown_us` is when a page first showed it, `ended_us` when its cause was gone; null until then.
    """

    name: str
    kind: str
    entity_kind: str
    entity: str
    host: str
    onset_us: int
    shown_us: int | None = None
    ended_us: int | None = None
    magnitude: Magnitude = field(default_factory=dict)


# Within which seconds of the run each begins. A run of 75 s then holds every fault long enough: a starved
# cold plate needs up to 15 s until the GPU is at its limit, so it comes first and leaves a minute.
_DEMO_ONSETS = {
    "thermal": (1.5, 3.0),
    "silent-host": (8.0, 15.0),
    "xid79": (12.0, 20.0),
    "job-start": (15.0, 30.0),
    "exporter-restart": (25.0, 45.0),
}
_DEMO_LOG_ONSETS = {
    "nvlink": (10.0, 20.0),
    "nic": (14.0, 24.0),
    "nic-notices": (18.0, 35.0),
    "forged-xid": (18.0, 35.0),
}
"""What only a log shows: it may strike a host to which something else happens."""
_DEMO_DEVICE_ONSETS = {
    "link-down": (6.0, 12.0),
    "leak": (10.0, 20.0),
    "memory-lost": (10.0, 25.0),
    "debug-guest": (12.0, 25.0),
    "link-blip": (12.0, 30.0),
    "memory-mended": (12.0, 30.0),
    "unit-hangs": (22.0, 35.0),
    "firmware-update": (15.0, 30.0),
}
"""What devices beside the GPUs show. A fault and what looks like it strike two different hosts."""


def draw_demo_scenario(plan: Plan, seed: int, *, devices: bool = True) -> Scenario:
    """Draw one of each fault and decoy; those that exporters show, on five different hosts.

    Without `devices`, only what a hall of GPUs alone can have.

    The hot GPU is of another job than the lost one and the one without its link, so that their loss does not cool it.
    """
    rng = Draw.SCENARIO.generator(seed)
    running = [job for job in plan.jobs if job.running]
    idle = [host for job in plan.jobs if not job.running for host in job.hosts]
    if len(running) < 2 or not idle or len(plan.hosts) < len(_DEMO_ONSETS):
        raise ValueError(f"a demo needs {len(_DEMO_ONSETS)} hosts or more, this hall has {len(plan.hosts)}")
    hot_job, lost_job = rng.choice(len(running), 2, replace=False)
    hosts = {
        "thermal": int(rng.choice(running[hot_job].hosts)),
        "xid79": int(rng.choice(running[lost_job].hosts)),
        "job-start": int(rng.choice(idle)),
    }
    everywhere = range(len(plan.hosts))
    free = [host for host in everywhere if host not in hosts.values()]
    hosts["silent-host"], hosts["exporter-restart"] = map(int, rng.choice(free, 2, replace=False))
    shown = [_draw_injection(rng, plan, name, hosts[name], onset) for name, onset in _DEMO_ONSETS.items()]
    cooler = [host for number, job in enumerate(running) if number != hot_job for host in job.hosts]
    hosts["nvlink"] = int(rng.choice([host for host in cooler if host != hosts["xid79"]]))
    for name in ("nic", "nic-notices", "forged-xid"):
        hosts[name] = int(rng.choice(everywhere))
    logged = [
        _draw_injection(rng, plan, name, hosts[name], onset) for name, onset in _DEMO_LOG_ONSETS.items()
    ]
    beside = _draw_on_devices(rng, plan) if devices else []
    return Scenario(injections=(*shown, *logged, *beside))


def _draw_on_devices(rng: np.random.Generator, plan: Plan) -> list[Injection]:
    drawn = []
    for fault, decoy in (
        ("link-down", "link-blip"),
        ("memory-lost", "memory-mended"),
        ("leak", "unit-hangs"),
        ("debug-guest", "firmware-update"),
    ):
        for name, host in zip((fault, decoy), rng.choice(len(plan.hosts), 2, replace=False), strict=True):
            drawn.append(_draw_injection(rng, plan, name, int(host), _DEMO_DEVICE_ONSETS[name]))
    return drawn


def _draw_injection(
    rng: np.random.Generator, plan: Plan, name: str, host: int, onset: tuple[float, float]
) -> Injection:
    return Injection(
        name=name,
        host=plan.hosts[host].name,
        onset_seconds=float(rng.uniform(*onset)),
        gpu_index=0
        if KINDS[name].entity in ("host", "guest", "cdu", "detector")
        else int(rng.integers(plan.gpus_per_host)),
        magnitude=KINDS[name].draw(rng),
    )


class Script:
    """A scenario being played on a hall; writes down what became true and when."""

    def __init__(self, scenario: Scenario, plan: Plan, start_us: int) -> None:
        self._start_us = start_us
        self._acts = [_Act(injection, plan, start_us) for injection in scenario.injections]

    @property
    def labels(self) -> list[dict[str, object]]:
        """The truth so far, in the order of the scenario."""
        return [asdict(act.label) for act in self._acts]

    def apply(self, hall: Hall, elapsed_seconds: float) -> None:
        """Do to the hall what the scenario wants at this time of the run; what lasts no longer was cleared before."""
        for act in self._acts:
            act.apply(hall, elapsed_seconds)

    def note(self, hall: Hall, readings: Readings, elapsed_seconds: float) -> bool:
        """Write down what the pages show or what ended; return whether a label changed."""
        now_us = self._start_us + round(elapsed_seconds * 1_000_000)
        changes = [act.note(hall, readings, elapsed_seconds, now_us) for act in self._acts]
        return any(changes)


class _Act:
    """One injection of a scenario in progress."""

    def __init__(self, injection: Injection, plan: Plan, start_us: int) -> None:
        self._kind = KINDS[injection.name]
        self._magnitude = injection.magnitude
        self._onset = injection.onset_seconds
        self._end = self._onset + float(injection.magnitude.get("lasts_seconds", float("inf")))
        self._begun = False
        host = _position(plan, injection.host)
        self._target = Target(host=host, gpu=host * plan.gpus_per_host + injection.gpu_index)
        self.label = Label(
            name=injection.name,
            kind=self._kind.kind,
            entity_kind=self._kind.entity,
            entity=_entity(plan, self._kind.entity, injection),
            host=injection.host,
            onset_us=start_us + round(self._onset * 1_000_000),
            magnitude=injection.magnitude,
        )

    def apply(self, hall: Hall, elapsed: float) -> None:
        if not self._onset <= elapsed < self._end:
            return
        if not self._begun:
            self._kind.begin(hall, self._target, self._magnitude)
            self._begun = True
        self._kind.hold(hall, self._target, self._magnitude, elapsed - self._onset)

    def note(self, hall: Hall, readings: Readings, elapsed: float, now_us: int) -> bool:
        label = self.label
        if label.shown_us is None and self._begun and self._kind.shows(hall, readings, self._target):
            label.shown_us = now_us
            return True
        if label.ended_us is None and elapsed >= self._end:
            label.ended_us = now_us
            return True
        return False


def _position(plan: Plan, host: str) -> int:
    return [entry.name for entry in plan.hosts].index(host)


def _entity(plan: Plan, kind: str, injection: Injection) -> str:
    host = plan.hosts[_position(plan, injection.host)]
    match kind:
        case "gpu":
            return host.gpus[injection.gpu_index].uuid
        case "nic":
            return f"{host.name}/{host.nics[injection.gpu_index].pci_bus_id}"
        case "port":
            return f"{host.nics[injection.gpu_index].guid}/1"
        case "dimm":
            return f"{host.name}/{DIMMS[injection.gpu_index]}"
        case "detector":
            return f"{host.cdu}/{LEAKING_DETECTOR_PATH}"
        case "cdu":
            return host.cdu
        case "guest":
            return f"{host.name}/snp"
        case _:
            return host.name
