"""Fifty coolant units in one process, half of them broken in every way: the others miss nothing, the broken are counted."""

import threading
from contextlib import ExitStack

from contract.clock import SystemClock
from contract.config import Config, HallSection, IngestSection
from contract.streams.coolant import COOLANT_READINGS
from contract.streams.self import COLLECTOR_STATUS
from ingest.coolant.testing import SpoiltServer, drip, forget, nest, pour, refused_url
from ingest.runner import build_runner
from ingest.testing import FakeOutlet
from twin.cdu import Cdu, serve_cdu
from twin.redfish import RedfishServers

INTERVAL_SECONDS = 2.0  # a fifth of the usual
GOOD_TIMEOUT_SECONDS, BROKEN_TIMEOUT_SECONDS = 30.0, 1.0  # a busy machine must not look like a broken unit
EACH, READINGS = 5, 3
USERS = {"hallwatch": "secret"}
REASONS = {
    "slow": {"timeout"},
    "endless": {"too_large", "timeout"},
    "deep": {"unreadable"},
    "forgetful": {"bad_status"},
    "dead": {"unreachable"},
}


def test_fifty_units_of_which_half_are_broken_in_five_ways(tmp_path):
    password = tmp_path / "password"
    password.write_text("secret")
    stop, outlet = threading.Event(), FakeOutlet()
    with ExitStack() as opened:
        good = [Cdu(f"cdu-{n:02}", rated_kilowatts=100, heat_kilowatts=60) for n in range(25)]
        servers = opened.enter_context(RedfishServers([serve_cdu(cdu, USERS) for cdu in good]))
        urls = {cdu.name: url for cdu, url in zip(good, servers.urls, strict=True)}
        for kind, answer in {"slow": drip, "endless": pour, "deep": nest, "forgetful": forget}.items():
            for number in range(EACH):
                server = SpoiltServer(answer)
                opened.callback(server.close)
                urls[f"{kind}-{number}"] = server.url
        urls |= {f"dead-{number}": refused_url() for number in range(EACH)}
        tables = tuple(
            {
                "collector": "coolant-redfish", "equipment": name, "url": url,
                "interval_seconds": INTERVAL_SECONDS,
                "timeout_seconds": GOOD_TIMEOUT_SECONDS if name.startswith("cdu") else BROKEN_TIMEOUT_SECONDS,
                "username": "hallwatch", "password_file": str(password),
            }
            for name, url in urls.items()
        )  # fmt: skip
        assert len(tables) == 50
        config = Config(hall=HallSection(name="test"), ingest=IngestSection(collectors=tables))
        runner = build_runner(config, outlet, clock=SystemClock())
        thread = threading.Thread(target=runner.run, args=(stop,))
        thread.start()
        while not enough(outlet, {cdu.name for cdu in good}) and thread.is_alive():
            stop.wait(0.2)
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
        assert [service.sessions for service in servers.services] == [{}] * len(good)
    told = {row["source"].partition("@")[2].partition("/")[0]: row for row in outlet.rows(COLLECTOR_STATUS)}
    for cdu in good:
        assert told[cdu.name]["polls_failed"] == 0
        assert told[cdu.name]["rejections"] == "{}"
    for kind, reasons in REASONS.items():
        for number in range(EACH):
            status = told[f"{kind}-{number}"]
            assert status["polls_failed"] == status["polls"] > 0
            assert status["last_error_reason"] in reasons
    rows = outlet.rows(COOLANT_READINGS)
    assert {row["equipment"] for row in rows} == {cdu.name for cdu in good}


def enough(outlet, names):
    """Tell whether each good unit was read so often."""
    times = {(row["equipment"], row["ts"]) for row in outlet.rows(COOLANT_READINGS)}
    return all(sum(name == equipment for equipment, _ in times) >= READINGS for name in names)
