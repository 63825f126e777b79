"""Which entities have what a handle moves: by index of their kind."""

from __future__ import annotations

import numpy as np

from twin.largehall import LargeHall
from twin.site import GPUS_PER_HOST, PORTS_PER_HOST


def liquid_rack(hall: LargeHall, rack: int) -> bool:
    """Want a rack whose hosts have cold plates."""
    return bool(hall.site.cdu_of_rack[rack] >= 0)


def busy_rack(hall: LargeHall, rack: int) -> bool:
    """Want a rack most of whose GPUs work."""
    gpus = np.repeat(hall.site.rack_of_host == rack, GPUS_PER_HOST)
    return bool(hall.tasks.busy[gpus].mean() > 0.5)


def busy_host(hall: LargeHall, host: int) -> bool:
    """Want a host whose GPUs work: a job has whole hosts."""
    return bool(hall.tasks.busy[host * GPUS_PER_HOST])


def busy_liquid_host(hall: LargeHall, host: int) -> bool:
    """Want a host with cold plates whose GPUs work."""
    return liquid_rack(hall, int(hall.site.rack_of_host[host])) and busy_host(hall, host)


def busy_gpu(hall: LargeHall, gpu: int) -> bool:
    """Want a GPU that works."""
    return bool(hall.tasks.busy[gpu])


def busy_port(hall: LargeHall, port: int) -> bool:
    """Want a port of a host whose GPUs work."""
    return busy_host(hall, port // PORTS_PER_HOST)


def snp_host(hall: LargeHall, host: int) -> bool:
    """Want a host of confidential VMs."""
    return hall.site.confidential[host] == "snp"


def confidential_host(hall: LargeHall, host: int) -> bool:
    """Want a host that proves itself, in whatever way."""
    return hall.site.confidential[host] != "none"


def running_job(hall: LargeHall, job: int) -> bool:
    """Want a job that runs."""
    return bool(hall.tasks.running[job])


def training_job(hall: LargeHall, job: int) -> bool:
    """Want a job that runs and saves checkpoints."""
    return hall.site.jobs[job].role == "train" and running_job(hall, job)
