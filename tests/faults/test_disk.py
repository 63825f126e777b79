"""The nemesis's small disks: what makes them full or read-only works while somebody writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.nemesis.disk import OWN_MOUNTS

pytestmark = pytest.mark.faults

UNSHARE = ("unshare", "--map-root-user", "--mount")
FORBID_WHILE_WRITTEN = """
import errno, sys, threading
from pathlib import Path
from tests.faults.nemesis import disk

folder, ended, refusals = Path(sys.argv[1]), threading.Event(), []

def write():
    while not ended.is_set():
        try:
            (folder / "file").write_bytes(bytes(1000))
        except OSError as error:
            refusals.append(error.errno)

disk.make_disk(folder)
writers = [threading.Thread(target=write, daemon=True) for _ in range(3)]
for writer in writers:
    writer.start()
for _ in range(30):
    disk.forbid_writing(folder)
    try:
        (folder / "mine").write_bytes(b"")
        sys.exit("a read-only folder was written")
    except OSError as error:
        assert error.errno == errno.EROFS
    disk.allow_writing(folder)
    (folder / "mine").write_bytes(b"")
ended.set()
for writer in writers:
    writer.join()
assert set(refusals) <= {errno.EROFS}
disk.remove_disks_below(folder.parent)
folder.rmdir()
"""


def test_a_folder_turns_read_only_while_others_write_it(tmp_path: Path) -> None:
    checkout = Path(__file__).parents[2]
    ran = subprocess.run(
        [*UNSHARE, sys.executable, "-c", FORBID_WHILE_WRITTEN, tmp_path / "disk"],
        env=os.environ | {OWN_MOUNTS: "1", "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unshare failed" in ran.stderr:
        pytest.skip(f"no mount namespace here: {ran.stderr.strip()}")
    assert (ran.returncode, ran.stderr) == (0, "")
