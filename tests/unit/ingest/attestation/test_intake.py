import base64
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import ValidationError

from contract.clock import SystemClock
from contract.config import HallSection
from contract.errors import CollectError, ConfigError
from contract.metrics import Metrics
from contract.streams.attestation import ATTESTATION_EVIDENCE, ATTESTATION_RESULTS
from contract.streams.self import COLLECTOR_STATUS
from contract.testing import START_US, FakeClock
from ingest.attestation import drop, intake
from ingest.attestation.intake import AttestImportCollector, AttestImportConfig
from ingest.attestation.nitro import NitroVerifier
from ingest.collector import Context
from ingest.source import Source, SourceMetrics
from ingest.testing import FakeOutlet


class Desk:
    """A collector over a folder, run by a real source into memory; `restart` loses everything but the outlet."""

    def __init__(self, folder: Path, roots: Path, **config: Any) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.outlet = FakeOutlet()
        self._config = {"roots": roots, "at": "evidence", **config}
        self._epoch = 0
        self.restart()

    def restart(self) -> None:
        self._epoch += 1
        hall = HallSection(name="test", synthetic=True)
        config = AttestImportConfig(collector="attest-import", folder=self.folder, **self._config)
        self.collector = AttestImportCollector(config, Context(hall=hall, clock=self.clock))
        metrics = SourceMetrics(Metrics())
        self.source = Source(
            config, self.collector, self.outlet, hall, f"epoch{self._epoch}", self.clock, metrics
        )

    def poll(self) -> bool:
        self.clock.advance(2)
        return self.source.poll()

    def put(self, name: str, body: bytes) -> Path:
        path: Path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return path

    def results(self) -> list[dict[str, Any]]:
        return self.outlet.rows(ATTESTATION_RESULTS)

    def archive(self) -> list[dict[str, Any]]:
        return self.outlet.rows(ATTESTATION_EVIDENCE)

    def files(self, own: str = "") -> list[str]:
        top = self.folder / own
        found = (path.relative_to(top) for path in top.rglob("*") if not path.is_dir())
        return sorted(
            str(path) for path in found if own or path.parts[0] not in ("taking", "taken", "set-aside")
        )

    def reason(self, name: str) -> str:
        return (self.folder / "set-aside" / f"{name}.reason").read_text().split(":")[0]

    def rejected(self) -> dict[str, int]:
        self.source.publish_status()
        status = self.outlet.rows(COLLECTOR_STATUS)[-1]
        rejections: dict[str, int] = json.loads(status["rejections"])
        return rejections


@pytest.fixture
def roots(tmp_path, authorities) -> Path:
    folder: Path = tmp_path / "roots"
    folder.mkdir()
    (folder / "aws_nitro.crt").write_bytes(authorities.certificates["root"].public_bytes(Encoding.PEM))
    return folder


@pytest.fixture
def desk(tmp_path, roots) -> Desk:
    folder = tmp_path / "drop"
    folder.mkdir()
    return Desk(folder, roots)


def _parcel(body: bytes, host: str) -> dict[str, Any]:
    return {"evidence": base64.b64encode(body).decode(), "host": host}


def test_a_file_becomes_one_row_and_its_bytes_another(desk, document):
    body = document()
    desk.put("host1/one.cbor", body)
    assert desk.poll()
    (row,) = desk.results()
    assert (row["host"], row["kind"], row["verdict"], row["synthetic"]) == ("host1", "nitro", "genuine", True)
    (kept,) = desk.archive()
    assert (kept["host"], kept["evidence"], kept["name"]) == ("host1", body, "host1/one.cbor")
    assert kept["digest"] == row["evidence_digest"]
    assert desk.files() == []
    assert desk.poll()
    assert desk.files("taken") == ["host1/one.cbor"]
    assert desk.poll()
    assert len(desk.results()) == 1


def test_evidence_that_comes_again_is_judged_again_and_kept_once(desk, document):
    body = document()
    for name in ("host1/one", "host2/one", "host1/one"):
        desk.put(name, body)
        assert desk.poll()
    desk.restart()
    desk.put("host1/two", body)
    assert desk.poll()
    assert [row["host"] for row in desk.results()] == ["host1", "host2", "host1", "host1"]
    assert len(desk.archive()) == 1


def test_forged_evidence_is_a_row_too(desk, document):
    desk.put("host1/one", document(cabundle=None))
    desk.put("host1/two", document()[:-10])
    assert desk.poll()
    assert {row["verdict"] for row in desk.results()} == {"forged"}
    assert len(desk.archive()) == 2


@pytest.mark.parametrize("own", [None, "host9"])
def test_the_host_is_the_folder_or_the_parcels_or_the_configured_one(tmp_path, roots, document, own):
    desk = Desk(tmp_path / "drop", roots, host=own)
    parcel = {"evidence": base64.b64encode(document()).decode(), "host": "host5"}
    desk.put("host1/parcel", json.dumps(parcel).encode())
    desk.put("parcel", json.dumps(parcel).encode())
    desk.put("plain", document())
    assert desk.poll()
    hosts = sorted(row["host"] for row in desk.results())
    assert hosts == ["host1", "host5", "host9"][: 3 if own else 2]
    assert desk.rejected() == ({} if own else {"no_host": 1})


def test_a_parcel_cannot_name_what_is_no_host(desk, document):
    parcel = {"evidence": base64.b64encode(document()).decode(), "host": "a/../b c"}
    desk.put("parcel", json.dumps(parcel).encode())
    assert desk.poll()
    assert desk.results() == []
    assert desk.reason("parcel") == "no_host"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"taken_us": True}, "unreadable"),
        ({"taken_us": 2**63}, "unreadable"),
        ({"taken_us": -1}, "unreadable"),
        ({"host": "h" * 256}, "no_host"),
        ({"host": "ü" * 255}, "no_host"),
    ],
)
def test_a_parcel_that_no_row_can_hold_holds_up_no_other(desk, document, values, reason):
    parcel = {"evidence": base64.b64encode(document()).decode(), "host": "h1", **values}
    desk.put("bad", json.dumps(parcel).encode())
    desk.put("host1/good", document())
    assert desk.poll()
    assert [row["host"] for row in desk.results()] == ["host1"]
    assert desk.reason("bad") == reason


def test_a_row_that_the_stream_refuses_sets_its_own_file_aside(desk, document, monkeypatch):
    desk.put("host1/bad", b"\x84module_id")
    desk.put("host1/good", document())
    verify = NitroVerifier.verify

    def wrong(self, evidence, setting):
        found = verify(self, evidence, setting)
        return replace(found, evidence_us=True) if evidence.name == "host1/bad" else found

    monkeypatch.setattr(NitroVerifier, "verify", wrong)
    assert desk.poll()
    assert [row["verdict"] for row in desk.results()] == ["genuine"]
    assert desk.reason("host1/bad") == "bad_value"
    assert desk.rejected() == {"bad_value": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"a letter to a friend", "unknown_kind"),
        (b"", "unknown_kind"),
        (b'{"evidence": 1}', "unreadable"),
        (bytes(101), "too_large"),
    ],
)
def test_what_is_no_evidence_is_set_aside_with_the_reason(tmp_path, roots, body, reason):
    desk = Desk(tmp_path / "drop", roots, max_evidence_bytes=100)
    path = desk.put("host1/one", body)
    assert desk.poll()
    assert desk.results() == desk.archive() == []
    assert not path.exists()
    assert desk.files("set-aside") == ["host1/one", "host1/one.reason"]
    assert desk.reason("host1/one") == reason
    assert desk.rejected() == {reason: 1}
    assert desk.poll()
    assert desk.rejected() == {reason: 1}


def test_endless_foreign_and_linked_files_are_set_aside_and_never_waited_for(desk, document):
    desk.put("host1/good", document())
    os.mkfifo(desk.folder / "host1" / "endless")
    secret = desk.put("../secret", document())
    (desk.folder / "host1" / "link").symlink_to(secret)
    (desk.folder / "host1" / "loop").symlink_to(desk.folder / "host1" / "loop")
    (desk.folder / "host1" / "folder" / "in" / "folder").mkdir(parents=True)
    desk.put("not a host/one", document())
    assert desk.poll()
    assert [row["host"] for row in desk.results()] == ["host1"]
    assert desk.rejected() == {"foreign": 5}
    assert secret.exists()
    assert desk.files() == []


@pytest.mark.parametrize("name", [".one", "one.part", "one.tmp", "one.partial"])
def test_a_file_whose_name_says_that_it_is_unfinished_waits(desk, document, name):
    path = desk.put(f"host1/{name}", document())
    assert desk.poll()
    assert desk.results() == []
    path.rename(path.with_name("one"))
    assert desk.poll()
    assert len(desk.results()) == 1


def test_a_file_that_changed_a_moment_ago_waits_unless_its_name_says_it_is_whole(tmp_path, roots, document):
    desk = Desk(tmp_path / "drop", roots, quiet_seconds=30)
    desk.put("host1/growing", document()[:-7])
    desk.put("host2/a.evidence", document())
    desk.clock.set((time.time_ns() // 1000 - desk.clock.now_us()) / 1e6)
    assert desk.poll()
    assert [row["host"] for row in desk.results()] == ["host2"]
    desk.put("host1/growing", document())
    assert desk.poll()
    desk.clock.advance(60)
    assert desk.poll()
    assert [row["verdict"] for row in desk.results()] == ["genuine", "genuine"]


def test_a_file_that_is_written_to_while_it_is_read_is_read_again(desk, document, monkeypatch):
    body = document()
    path = desk.put("host1/one", body[:-7])
    with path.open("ab") as writer:
        fstat, seen = os.fstat, []

        def written_meanwhile(descriptor):
            seen.append(descriptor)
            if len(seen) == 2:
                writer.write(body[-7:])
                writer.flush()
            return fstat(descriptor)

        monkeypatch.setattr(os, "fstat", written_meanwhile)
        assert desk.poll()
        assert desk.results() == []
        assert desk.poll()
    assert [row["verdict"] for row in desk.results()] == ["genuine"]


def test_after_a_kill_before_the_rows_were_stored_the_file_is_read_again(desk, document):
    desk.put("host1/one", document())
    desk.collector.collect(START_US)
    assert desk.files("taking") == ["host1/one"]
    desk.restart()
    assert desk.poll()
    assert desk.poll()
    assert len(desk.results()) == 1
    assert desk.files("taken") == ["host1/one"]


def test_after_a_kill_behind_the_rows_the_file_is_not_read_again(desk, document):
    desk.put("host1/one", document())
    assert desk.poll()
    assert desk.files("taking") == ["host1/one"]
    desk.restart()
    assert desk.poll()
    assert len(desk.results()) == 1
    assert desk.files("taken") == ["host1/one"]


def test_a_new_file_of_an_old_name_is_not_taken_for_the_old_one_after_two_kills(desk, document):
    desk.put("host1/one", document())
    assert desk.poll()
    desk.restart()
    desk.put("host1/one", document(nonce=b"other"))
    desk.collector.collect(START_US)
    desk.restart()
    assert desk.poll()
    assert len({row["digest"] for row in desk.results()}) == 2


def test_what_the_outlet_does_not_take_is_sent_again_and_told_once(desk, document):
    desk.put("host1/one", document())
    desk.outlet.refusals = ["full"] * 3  # the events, the status, the events again
    assert not desk.poll()
    assert not desk.poll()
    assert desk.poll()
    assert desk.poll()
    assert len(desk.results()) == len(desk.archive()) == 1


def test_a_reading_that_fails_in_the_middle_loses_nothing(desk, document, monkeypatch):
    for number in range(3):
        desk.put(f"host1/{number}", document(user_data=bytes([number])))
    take = desk.collector._drop.take

    def breaks(until):
        yield next(take(until))
        raise CollectError("unreachable", "the disk went away")

    monkeypatch.setattr(desk.collector._drop, "take", breaks)
    assert not desk.poll()
    monkeypatch.undo()
    assert desk.poll()
    assert len(desk.results()) == len(desk.archive()) == 3


def test_a_reading_whose_rows_could_not_be_queued_is_read_again(desk, document, monkeypatch):
    desk.put("host1/one", document())
    monkeypatch.setattr(desk.source, "_clean", None)
    assert not desk.poll()
    monkeypatch.undo()
    assert desk.poll()
    assert desk.poll()
    assert len(desk.results()) == len(desk.archive()) == 1


@pytest.mark.parametrize("name", [b"host1/no\xfftext", b"ho\xffst/text", b"host1/two\nlines", b"n" * 250])
def test_a_file_may_have_any_name_that_the_file_system_takes(desk, document, name):
    path = Path(os.fsdecode(os.fsencode(desk.folder) + b"/" + name))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(document())
    assert desk.poll()
    assert desk.results() == []
    assert sum(desk.rejected().values()) == 1
    assert len(desk.files("set-aside")) == 2


def test_a_defect_that_one_file_shows_holds_up_no_other(desk, document, monkeypatch):
    desk.put("host1/bad", b"\x84module_id")
    desk.put("host1/good", document())
    verify = NitroVerifier.verify

    def breaks(self, evidence, setting):
        if evidence.name == "host1/bad":
            raise ZeroDivisionError
        return verify(self, evidence, setting)

    monkeypatch.setattr(NitroVerifier, "verify", breaks)
    assert desk.poll()
    assert [row["verdict"] for row in desk.results()] == ["genuine"]
    assert desk.reason("host1/bad") == "defect"


def test_a_reading_ends_at_half_its_timeout_and_at_a_size(desk, document, monkeypatch):
    for number in range(4):
        desk.put(f"host1/{number}", document(user_data=bytes([number]) * 8))
    monkeypatch.setattr(intake, "_READING_BYTES", 6_000)
    assert desk.poll()
    assert len(desk.results()) == 2
    verify = NitroVerifier.verify

    def slow(self, evidence, setting):
        desk.clock.advance(3)
        return verify(self, evidence, setting)

    monkeypatch.setattr(NitroVerifier, "verify", slow)
    assert desk.poll()
    assert len(desk.results()) == 3
    assert desk.poll()
    assert len(desk.results()) == 4


def test_files_put_away_are_removed_in_time(tmp_path, roots, document):
    desk = Desk(tmp_path / "drop", roots, keep_hours=1)
    desk.clock.set((time.time_ns() // 1000 - desk.clock.now_us()) / 1e6 + 10)
    desk.put("host1/one", document())
    desk.put("host1/other", b"no evidence")
    for _ in range(3):
        assert desk.poll()
    assert desk.files("taken") == ["host1/one"]
    desk.clock.advance(3_700)
    assert desk.poll()
    assert desk.files("taken") == desk.files("set-aside") == []


def test_a_folder_may_have_the_name_that_a_file_had(desk, document):
    names = ["n1", "n1/b.evidence", "n2/a.evidence", "n2"]
    for number, name in enumerate(names):
        desk.put(name, json.dumps(_parcel(document(user_data=bytes([number])), "host1")).encode())
        for _ in range(2):
            assert desk.poll()
        if "/" in name:
            (desk.folder / name).parent.rmdir()
    assert len(desk.results()) == 4
    assert len(desk.files("taken")) == 4


def test_a_file_that_is_being_read_is_not_in_the_way_of_a_folder_of_its_name(desk, document):
    path = desk.put("n1", json.dumps(_parcel(document(), "host1")).encode())
    assert desk.poll()
    assert not path.exists()
    desk.put("n1/b.evidence", document(user_data=b"other"))
    for _ in range(3):
        assert desk.poll()
    assert [row["host"] for row in desk.results()] == ["host1", "n1"]


def test_what_was_set_aside_is_in_the_way_of_nothing(desk):
    outside, aside, long = desk.folder.parent / "outside", desk.folder / "set-aside", "x" * 250
    outside.mkdir()
    for name in ("n1", "host1/folder"):
        desk.put(name, b"no evidence")
    (desk.folder / "n2").symlink_to(outside)
    assert desk.poll()
    (aside / "n3.reason" / "in").mkdir(parents=True)
    (aside / long / "in").mkdir(parents=True)
    for name in ("n1/b", "n2/b", "n3", long):
        desk.put(name, b"no evidence")
    (desk.folder / "host1" / "folder" / "in").mkdir(parents=True)
    for _ in range(2):
        assert desk.poll()
    assert desk.files() == desk.files("taking") == []
    assert list(outside.iterdir()) == []
    assert {"n1/b", "n2/b", "n3", "n3.reason"} <= set(desk.files("set-aside"))


def test_folders_of_hosts_that_stay_empty_are_removed(desk, document):
    desk.clock.set((time.time_ns() // 1000 - desk.clock.now_us()) / 1e6 + 10)
    desk.put("host1/one", document())
    (desk.folder / "host2").mkdir()
    for _ in range(3):
        assert desk.poll()
    assert {path.name for path in desk.folder.iterdir()} == {"host1", "host2", "taking", "taken", "set-aside"}
    assert list((desk.folder / "taking").iterdir()) == []
    desk.clock.advance(700)
    desk.put("host3/waits.part", document())
    assert desk.poll()
    assert {path.name for path in desk.folder.iterdir()} == {"host3", "taking", "taken", "set-aside"}
    assert desk.files("taken") == ["host1/one"]


def test_a_folder_that_another_user_made_for_a_sender_stays(desk, monkeypatch):
    desk.clock.set((time.time_ns() // 1000 - desk.clock.now_us()) / 1e6 + 10)
    (desk.folder / "host1").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    for _ in range(2):
        desk.clock.advance(700)
        assert desk.poll()
    assert (desk.folder / "host1").is_dir()


def test_what_one_look_cannot_see_has_its_turn_at_the_next(desk, document, monkeypatch):
    monkeypatch.setattr(drop, "MAX_ENTRIES", 5)
    for number in range(20):
        (desk.folder / f"empty{number}").mkdir()
    for number in range(3):
        desk.put(f"host{number}/one", document(user_data=bytes([number])))
    for _ in range(6):
        assert desk.poll()
    assert sorted(row["host"] for row in desk.results()) == ["host0", "host1", "host2"]


def test_tidying_goes_on_where_it_stopped(tmp_path, roots, document, monkeypatch):
    desk = Desk(tmp_path / "drop", roots, keep_hours=1)
    desk.clock.set((time.time_ns() // 1000 - desk.clock.now_us()) / 1e6 + 10)
    for number in range(9):
        desk.put(f"host{number}/one", document(user_data=bytes([number])))
    for _ in range(3):
        assert desk.poll()
    assert len(desk.files("taken")) == 9
    monkeypatch.setattr(drop, "MAX_ENTRIES", 2)
    desk.clock.advance(3_700)
    for _ in range(30):
        assert desk.poll()
    assert {path.name for path in desk.folder.rglob("*")} == {"taking", "taken", "set-aside"}


def test_a_folder_that_is_gone_is_a_failure_and_its_return_is_none(desk, document):
    desk.folder.rename(desk.folder.with_name("away"))
    assert not desk.poll()
    assert desk.outlet.rows(COLLECTOR_STATUS)[-1]["last_error_reason"] == "unreachable"
    desk.folder.with_name("away").rename(desk.folder)
    desk.put("host1/one", document())
    assert desk.poll()
    assert len(desk.results()) == 1


@pytest.mark.parametrize(
    "kept", [b"", b"[]", b'{"archived": 1}', b'{"archived": "", "handed_out": {"a": 1}}', b"\xff"]
)
def test_a_cursor_that_cannot_be_read_is_as_good_as_none(desk, document, kept):
    desk.collector.restore(kept)
    desk.put("host1/one", document())
    assert desk.poll()
    assert len(desk.results()) == 1


def test_a_cursor_of_another_folder_says_nothing_of_the_files_here(desk, document):
    desk.put("host1/one", document())
    desk.collector.collect(START_US)
    cursor = json.loads(desk.collector.cursor()) | {"folder": "/elsewhere"}
    desk.outlet.cursors[desk.source.name] = json.dumps(cursor).encode()
    desk.restart()
    assert desk.poll()
    assert len(desk.results()) == 1


def test_certificates_are_judged_now_unless_configured_otherwise(tmp_path, roots, document):
    desk = Desk(tmp_path / "drop", roots, at="now")
    desk.put("host1/one", document())
    assert desk.poll()
    desk.clock.advance(86_400)
    desk.put("host1/one", document())
    assert desk.poll()
    assert [row["verdict"] for row in desk.results()] == ["genuine", "unknown"]


def test_only_so_many_digests_are_remembered(desk, document, monkeypatch):
    monkeypatch.setattr(intake, "_ARCHIVED", 2)
    bodies = [document(user_data=bytes([number])) for number in range(3)]
    for body in (*bodies, bodies[2], bodies[0]):
        desk.put("host1/one", body)
        assert desk.poll()
    assert len(desk.archive()) == 4
    assert len(desk.collector.cursor()) < 1_000


def test_the_policy_and_its_mistakes_are_read_at_the_start(tmp_path, roots, document):
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: ours\nmeasurements: []\n")
    desk = Desk(tmp_path / "drop", roots, policy=policy)
    desk.put("host1/one", document())
    assert desk.poll()
    (row,) = desk.results()
    assert (row["policy"], row["policy_name"]) == ("violated", "ours")
    policy.write_text("policy: ours\nmeasurement: []\n")
    with pytest.raises(ConfigError, match=r"policy\.yaml:2"):
        desk.restart()


def test_roots_of_the_twin_are_refused_in_a_hall_that_is_real(tmp_path, roots):
    config = AttestImportConfig(collector="attest-import", folder=tmp_path, roots=roots)
    with pytest.raises(ConfigError, match="twin"):
        AttestImportCollector(config, Context(hall=HallSection(name="real"), clock=SystemClock()))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"listen": "0.0.0.0:80"}, "needs `certificate`"),
        ({"listen": "[::]:80"}, "needs `certificate`"),
        ({"listen": "h:80", "token_file": "t"}, "needs `certificate`"),
        ({"listen": "h:80", "certificate": "c", "key": "k"}, "`client_ca` or `token_file`"),
        ({"listen": "127.0.0.1:99999"}, "65535"),
        ({"listen": "127.0.0.1"}, "pattern"),
        ({"certificate": "c"}, "belong together"),
        ({"client_ca": "c"}, "needs `certificate`"),
    ],
)
def test_a_listener_that_strangers_could_reach_must_be_secured(tmp_path, values, words):
    with pytest.raises(ValidationError, match=words):
        AttestImportConfig(collector="attest-import", folder=tmp_path, **values)


def test_a_file_whose_rows_were_refused_is_read_again_by_the_next_process(desk, document):
    desk.put("host1/one", document())
    desk.outlet.refusals = ["closed"]
    assert not desk.poll()
    desk.restart()  # the queue of the old process is gone
    assert desk.poll()
    assert len(desk.results()) == 1
