"""Small disks of their own for the folders of a system: they can be full or read-only without harm to anyone else.

They need a mount namespace, which `run.py` asks for (`unshare`); where the machine gives none there are plain
folders, and the faults that need more do not apply.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

OWN_MOUNTS = "HALLWATCH_OWN_MOUNTS"
"""Set where this process may mount what nobody else sees."""

_SIZE_MEGABYTES = 96
BALLAST = "ballast"


def may_mount() -> bool:
    return os.environ.get(OWN_MOUNTS) == "1"


def make_disk(folder: Path) -> None:
    """Make a folder, on a disk of its own where that can be had."""
    folder.mkdir(parents=True)
    if may_mount():
        _mount("-t", "tmpfs", "-o", f"size={_SIZE_MEGABYTES}m", "tmpfs", folder)


def remove_disk(folder: Path) -> None:
    if may_mount():
        subprocess.run(["umount", "--lazy", folder], check=True)


def remove_disks_below(folder: Path) -> None:
    """Let go of every disk in a folder, so that the folder can be removed while somebody still uses them."""
    if may_mount():
        mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for place in reversed(mounted):
            if Path(place).is_relative_to(folder):
                subprocess.run(["umount", "--lazy", place], check=False)


def fill(folder: Path) -> None:
    """Take what room is left on a folder's disk, to the last byte."""
    with (folder / BALLAST).open("ab", buffering=0) as ballast:
        for size in (2**20, 2**12, 1):
            with suppress(OSError):
                while True:
                    ballast.write(bytes(size))


def make_room(folder: Path) -> None:
    (folder / BALLAST).unlink(missing_ok=True)


def forbid_writing(folder: Path) -> None:
    """Make a folder read-only for whoever opens a file in it from now on, root included.

    It turns read-only beside the folder and is laid over it after: a mount with a file open for writing refuses to
    (`mount`: busy), and the system that is to be struck writes all the time.
    """
    aside = folder.with_name(f"{folder.name}-read-only")
    aside.mkdir(exist_ok=True)
    _mount("--bind", folder, aside)
    _mount("-o", "remount,ro,bind", aside)
    _mount("--bind", aside, folder)
    subprocess.run(["umount", aside], check=True)


def allow_writing(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", folder], check=True)


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)
