"""`alertmanager`: Prometheus Alertmanager's API v2, so that routing, silences and on-call stay where they are.

Alertmanager resolves what it is not told about again: an alert is sent with an end four hours ahead and renewed each
minute, so a dead engine resolves nothing for that long, and the watchdog is what then goes quiet.
API: Prometheus Alertmanager, OpenAPI description of API v2, `POST /alerts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import orjson
from pydantic import Field, SecretStr

from alerts.frame import iso
from alerts.notifier import Notification, NotifierConfig, notifier
from contract.errors import NotifyError

FIRING_US = 4 * 3_600_000_000
WATCHDOG_US = 300_000_000
WATCHDOG = "HallwatchWatchdog"

MAX_ANSWER_BYTES = 4_096


class AlertmanagerConfig(NotifierConfig):
    """Where Alertmanager is, and how to be let in."""

    url: str = Field(pattern=r"^https?://\S+$", description="Its address, without /api/v2.")
    timeout_seconds: float = Field(default=10, gt=0, le=60, description="For connecting and for every wait.")
    bearer_token: SecretStr | None = Field(default=None, description="Sent as authorization.")
    generator_url: str | None = Field(default=None, description="Link that Alertmanager shows at an alert.")


@notifier("alertmanager", AlertmanagerConfig)
class AlertmanagerNotifier:
    """Posts alerts; a repeat changes nothing there, because labels are an alert's identity."""

    batch_size = 100
    refresh_seconds = 60.0

    def __init__(self, config: AlertmanagerConfig) -> None:
        self._config = config
        headers = {"content-type": "application/json"}
        if config.bearer_token is not None:
            headers["authorization"] = f"Bearer {config.bearer_token.get_secret_value()}"
        self._client = httpx.Client(
            base_url=config.url.rstrip("/"), timeout=config.timeout_seconds, headers=headers, trust_env=False
        )

    def notify(self, notifications: Sequence[Notification]) -> str:
        return self._post([self._alert(n) for n in notifications])

    def refresh(self, firing: Sequence[Notification], now_us: int, *, alive: bool, hall: str) -> None:
        """Renew everything that fires; the watchdog too, while the engine lives."""
        for part in _parts([self._alert(n) for n in firing], self.batch_size):
            self._post(part)
        if alive:
            self._post([_watchdog(hall, now_us)])

    def close(self) -> None:
        self._client.close()

    def _alert(self, notification: Notification) -> dict[str, Any]:
        row = notification.row
        ended = row["transition"] == "ended"
        end_us = max(_int(row["ts"]), _int(row["began"])) if ended else notification.told_us + FIRING_US
        labels = {
            "alertname": row["rule"],
            "severity": row["severity"],
            "entity": row["entity"],
            "entity_kind": row["entity_kind"],
            "hall": notification.hall,
            "host": row.get("host"),
            "place": notification.place,
        }
        annotations = {
            "summary": row["summary"],
            "runbook": row.get("runbook"),
            "owner": row["owner"],
            "fingerprint": row["fingerprint"],
            "end_reason": row.get("end_reason"),
            "idempotency_key": notification.key,
            "chain_head": notification.head.text if notification.head is not None else None,
        }
        alert = {
            "labels": _texts(labels),
            "annotations": _texts(annotations),
            "startsAt": iso(_int(row["began"])),
            "endsAt": iso(end_us),
        }
        if self._config.generator_url is not None:
            alert["generatorURL"] = self._config.generator_url
        return alert

    def _post(self, alerts: Sequence[Mapping[str, Any]]) -> str:
        try:
            with self._client.stream("POST", "/api/v2/alerts", content=orjson.dumps(alerts)) as response:
                said = _read_some(response)
                status = response.status_code
        except httpx.TimeoutException as error:
            raise NotifyError("timeout", f"Alertmanager: {error!r}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotifyError("unreachable", f"Alertmanager: {error!r}") from error
        if 200 <= status < 300:
            return f"{status}"
        # Too slow and too many are for later; every other 4xx says that this will never be taken.
        final = 400 <= status < 500 and status not in (408, 429)
        raise NotifyError("rejected" if final else "unreachable", f"Alertmanager: {status} {said}")


def _watchdog(hall: str, now_us: int) -> dict[str, Any]:
    return {
        "labels": {"alertname": WATCHDOG, "severity": "info", "hall": hall},
        "annotations": {"summary": "Always firing: when it stops, the alert engine is dead or cut off."},
        "endsAt": iso(now_us + WATCHDOG_US),
    }


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value}


def _int(value: Any) -> int:
    return int(value)


def _parts(alerts: list[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(alerts), size):
        yield alerts[start : start + size]


def _read_some(response: httpx.Response) -> str:
    body = b""
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) >= MAX_ANSWER_BYTES:
            break
    return body[:MAX_ANSWER_BYTES].decode(errors="replace").strip()[:500]
