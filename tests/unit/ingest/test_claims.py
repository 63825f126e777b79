"""One source is sent by one process."""

import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from contract.errors import ConfigError
from ingest.claims import claim_sources

HOLDER = """
import sys, time
from pathlib import Path
from ingest.claims import claim_sources
with claim_sources(Path(sys.argv[1]), ["a@h/main", "b@h/main"]):
    print("claimed", flush=True)
    time.sleep(60)
"""


def test_what_one_process_has_another_is_refused_until_it_is_gone(tmp_path):
    folder = tmp_path / "sources"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        with (
            pytest.raises(ConfigError, match=rf"process {holder.pid} collects b@h/main") as caught,
            claim_sources(folder, ["c@h/main", "b@h/main"]),
        ):
            raise AssertionError
        assert caught.value.reason == "in_use"
        with claim_sources(folder, ["c@h/main"]):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        with claim_sources(folder, ["b@h/main"]):
            assert len(list(folder.glob("*.claim"))) == 1
    finally:
        holder.kill()
        holder.communicate()


def test_a_claim_ends_with_its_block_whatever_ends_that(tmp_path):
    with pytest.raises(KeyError), claim_sources(tmp_path, ["a@h/main"]):
        raise KeyError
    with ExitStack() as claims:
        claims.enter_context(claim_sources(tmp_path, ["a@h/main"]))
        claims.enter_context(claim_sources(tmp_path, ["b@h/main"]))
        with pytest.raises(ConfigError), claim_sources(tmp_path, ["a@h/main"]):
            raise AssertionError
    assert list(tmp_path.glob("*.claim")) == []
