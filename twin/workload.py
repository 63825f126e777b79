"""What the jobs ask of their GPUs: computing, waiting on the network, writing checkpoints, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from twin.plan import Plan

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Per GPU, the share of the time spent on each kind of work; all zero without a job."""

    running: Flags
    computing: Floats
    communicating: Floats
    saving: Floats


class Workload:
    """The jobs of a hall in motion. A job's slowest GPU sets the pace of all of its GPUs."""

    def __init__(self, plan: Plan) -> None:
        jobs = plan.jobs
        job_of_host = np.empty(len(plan.hosts), np.intp)
        for number, job in enumerate(jobs):
            job_of_host[list(job.hosts)] = number
        self.job_of_gpu = np.repeat(job_of_host, plan.gpus_per_host)
        self.running = np.array([job.running for job in jobs])
        self.intensity = np.array([job.intensity for job in jobs])[self.job_of_gpu]
        self.framebuffer_mib = np.array([job.framebuffer_mib for job in jobs])[self.job_of_gpu]
        self.multi_host = np.array([len(job.hosts) > 1 for job in jobs])[self.job_of_gpu]
        self._compute_seconds = np.array([job.iteration_seconds * job.compute_share for job in jobs])
        self._other_seconds = np.array([job.iteration_seconds for job in jobs]) - self._compute_seconds
        self._every = np.array([job.checkpoint_every_seconds for job in jobs])
        self._lasts = np.array([job.checkpoint_seconds for job in jobs])
        self._first = np.array([job.first_checkpoint_seconds for job in jobs])
        self._age = np.zeros(len(jobs))
        self._turns = np.zeros(len(jobs))

    def advance(self, seconds: float, speed: Floats) -> Activity:
        """Run all jobs for `seconds` on GPUs at `speed` (1 = full clock) and return what each GPU did.

        In a synchronous job a fast GPU finishes its part early and waits, spinning, for the slowest one.
        """
        slowest = np.ones(len(self.running))
        np.minimum.at(slowest, self.job_of_gpu, speed)
        period = self._other_seconds + self._compute_seconds / slowest
        share = ((self._compute_seconds / period)[self.job_of_gpu]) / speed
        turns = (seconds / period)[self.job_of_gpu]
        before = self._turns[self.job_of_gpu]
        computing = np.clip((_time_on(before + turns, share) - _time_on(before, share)) / turns, 0.0, 1.0)
        self._turns = (self._turns + np.where(self.running, seconds / period, 0.0)) % 1.0
        self._age += np.where(self.running, seconds, 0.0)
        running = self.running[self.job_of_gpu]
        saving = running & self._is_saving()[self.job_of_gpu]
        working = running & ~saving
        return Activity(
            running=running,
            computing=np.where(working, computing, 0.0),
            communicating=np.where(working, 1.0 - computing, 0.0),
            saving=saving.astype(np.float64),
        )

    def _is_saving(self) -> Flags:
        since = self._age - self._first
        saving: Flags = (since >= 0) & (since % self._every < self._lasts)
        return saving


def _time_on(turns: Floats, share: Floats) -> Floats:
    """Return the time a wave that is on for the first `share` of each turn has been on, in turns."""
    whole = np.floor(turns)
    return whole * share + np.minimum(turns - whole, share)
