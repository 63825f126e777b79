"""The jobs of a large hall in motion: each as fast as its slowest GPU and its slowest rail."""

from __future__ import annotations

import numpy as np

from twin.physics import COMMUNICATING_INTENSITY, SAVING_INTENSITY
from twin.site import GPUS_PER_HOST, Ints, Site
from twin.workload import Flags, Floats

TIMEOUT_SECONDS = 120.0  # a collective that stands longer ends its job
RESTART_SECONDS = 90.0


class Tasks:
    """Every job with its phase. A GPU that waits spins on the network: its power falls, its utilisation does not."""

    def __init__(self, site: Site, rng: np.random.Generator) -> None:
        jobs = site.jobs
        self._site = site
        job_of_host = np.full(len(site.hosts), -1)
        stage = np.zeros(len(site.hosts))
        for number, job in enumerate(jobs):
            at = list(job.hosts)
            job_of_host[at] = number
            stage[at] = np.arange(len(at)) * job.stages // len(at) / max(job.stages, 1)
        self.job_of_gpu: Ints = np.repeat(job_of_host, GPUS_PER_HOST)
        self.stage_of_host = stage
        self._has_job = self.job_of_gpu >= 0
        self._of = np.maximum(self.job_of_gpu, 0)
        # The last stage of a pipeline also holds the loss: it works a little more.
        self.intensity = np.array([job.intensity for job in jobs])[self._of]
        self.intensity *= np.repeat(0.94 + 0.08 * stage, GPUS_PER_HOST)
        iteration = np.array([job.iteration_seconds for job in jobs])
        self._compute_seconds = iteration * np.array([job.compute_share for job in jobs])
        self._collective_seconds = iteration - self._compute_seconds
        self._every = np.array([job.checkpoint_every_seconds for job in jobs])
        self._lasts = np.array([job.checkpoint_seconds for job in jobs])
        self._since_save = rng.uniform(0, 1, len(jobs)) * (self._every - self._lasts) + self._lasts
        self._turns = rng.uniform(0, 1, len(jobs))
        self.saves_stall = np.zeros(len(jobs), np.bool_)
        """Jobs whose storage does not take the checkpoint."""
        self.wanted = np.ones(len(jobs), np.bool_)
        """Jobs that their owners want to run."""
        self.running = np.ones(len(jobs), np.bool_)
        self.crashed = np.zeros(len(jobs), np.bool_)
        """Set from outside: the job ends at the next step."""
        self.stalled_seconds = np.zeros(len(jobs))
        self.restarts = np.zeros(len(jobs), np.int64)
        self._ended_seconds = np.zeros(len(jobs))
        self.collective_ratio = np.ones(len(jobs))
        self.step_seconds = iteration.copy()
        self.busy = self._has_job.copy()
        self.computing = np.zeros(len(self._of))
        self.communicating = np.zeros(len(self._of))
        self.saving = np.zeros(len(self._of))

    def advance(self, seconds: float, speed: Floats, usable: Flags, slowness: Floats) -> Floats:
        """Run all jobs; return the work of each GPU, 0 to 1.

        `speed` of GPUs and `slowness` of ports, host by host; a GPU that is not `usable` stops its job.
        """
        able = self._over_gpus(np.where(usable, 1.0, 0.0), 1.0) > 0
        pace = np.maximum(self._over_gpus(speed, 1.0), 0.05)
        self.collective_ratio = -self._over_gpus(-slowness, -1.0)  # a port belongs to a GPU of its host
        self._begin_and_end(seconds, able)
        going = self.running & able
        collective = self._collective_seconds * self.collective_ratio
        self.step_seconds = collective + self._compute_seconds / pace
        self._since_save += np.where(going & ~(self.saves_stall & self._is_saving()), seconds, 0.0)
        self._since_save = np.where(self._since_save >= self._every, 0.0, self._since_save)
        saving = going & self._is_saving()
        turns = np.where(going & ~saving, seconds / self.step_seconds, 0.0)
        before, self._turns = self._turns, (self._turns + turns) % 1.0
        of = self._of
        self.busy = self._has_job & self.running[of] & usable
        share = (self._compute_seconds / self.step_seconds)[of] / np.maximum(speed, 0.05)
        passed = np.maximum(turns, 1e-9)[of]
        at = before[of]
        computing = np.clip((_time_on(at + passed, share) - _time_on(at, share)) / passed, 0.0, 1.0)
        works = self.busy & going[of] & ~saving[of]
        self.computing = np.where(works, computing, 0.0)
        self.saving = np.where(self.busy & saving[of], 1.0, 0.0)
        self.communicating = np.where(self.busy, 1.0 - self.computing - self.saving, 0.0)
        work = self.computing + COMMUNICATING_INTENSITY * self.communicating + SAVING_INTENSITY * self.saving
        return np.asarray(self.intensity * work)

    def save_now(self, job: int) -> None:
        """Let a job begin a checkpoint."""
        self._since_save[job] = 0.0

    def _begin_and_end(self, seconds: float, able: Flags) -> None:
        self.stalled_seconds = np.where(self.running & ~able, self.stalled_seconds + seconds, 0.0)
        ends = self.running & (self.crashed | ~self.wanted | (self.stalled_seconds > TIMEOUT_SECONDS))
        self._ended_seconds = np.where(self.running, 0.0, self._ended_seconds + seconds)
        begins = ~self.running & self.wanted & able & (self._ended_seconds >= RESTART_SECONDS)
        self.restarts += begins
        self.running = (self.running & ~ends) | begins
        self.crashed[:] = False

    def _is_saving(self) -> Flags:
        saving: Flags = self._since_save < self._lasts
        return saving

    def _over_gpus(self, values: Floats, otherwise: float) -> Floats:
        """Return the least value of the GPUs of each job."""
        least = np.full(len(self.running), np.inf)
        np.minimum.at(least, self._of[self._has_job], values[self._has_job])
        return np.where(np.isfinite(least), least, otherwise)


def _time_on(turns: Floats, share: Floats) -> Floats:
    """Return the time a wave that is on for the first `share` of each turn has been on, in turns."""
    whole = np.floor(turns)
    return whole * share + np.minimum(turns - whole, share)
