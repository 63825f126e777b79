"""What the machines of a large hall can prove: boots, firmware, chips and launch data, and the reports about them.

Fields: AMD SEV-SNP firmware ABI (56860), ATTESTATION_REPORT; AWS Nitro Enclaves, attestation document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from twin.site import Site

REPORT_SECONDS = 60.0
STALE_SECONDS = 300
TCB = {"bootloader": 10, "tee": 0, "snp": 23, "microcode": 84}
LEAST_SNP = 22
"""What the hall's policy asks for."""
FINDINGS = (
    "debug_allowed",
    "evidence_stale",
    "host_data_not_allowed",
    "signature_wrong",
    "tcb_below_minimum",
)


class Trust:
    """Per host, what its evidence would say; what handles change are its plain arrays."""

    def __init__(self, site: Site, rng: np.random.Generator) -> None:
        count = len(site.hosts)
        self._site = site
        self._due = rng.uniform(0, REPORT_SECONDS, count)
        self._kept: dict[int, Mapping[str, Any]] = {}
        self.chip_ids = [rng.bytes(64).hex() for _ in range(count)]
        self.host_data = [rng.bytes(32).hex()] * count
        self.expected_host_data = self.host_data[0]
        self.measurement = rng.bytes(48).hex()
        self.snp_version = np.full(count, TCB["snp"])
        self.debug = np.zeros(count, np.bool_)
        self.replays = np.zeros(count, np.bool_)
        self.forges = np.zeros(count, np.bool_)
        self.silent = np.zeros(count, np.bool_)
        self.gpu_confidential = np.array([proof == "snp" for proof in site.confidential])
        self.gpu_mode_on = self.gpu_confidential.copy()
        self.boots = np.zeros(count, np.int64)
        self.boot_ids = [_uuid(rng) for _ in range(count)]
        self.age_seconds = np.zeros(count)
        """How old the evidence is that a host hands in."""
        self.rng = rng

    def boot(self, host: int) -> str:
        """Give a host the id of a new boot; return the id before."""
        before, self.boot_ids[host] = self.boot_ids[host], _uuid(self.rng)
        self.boots[host] += 1
        return before

    def reports(self, elapsed: float, seconds: float, now_us: int) -> list[tuple[str, dict[str, object]]]:
        """Return (host, row) of every evaluation of these last `seconds`."""
        since = (elapsed - self._due) % REPORT_SECONDS
        rows = []
        for host in np.flatnonzero((since < seconds) & ~self.silent).tolist():
            kind = self._site.confidential[host]
            if kind == "none":
                continue
            row = self._report(host, kind, now_us)
            if self.replays[host]:
                row = _again(self._kept.get(host, row), now_us)
            else:
                self._kept[host] = row
            rows.append((self._site.hosts[host], row))
            if self.gpu_confidential[host]:
                rows.append((self._site.hosts[host], self._gpu_report(host, now_us)))
        return rows

    def _report(self, host: int, kind: str, now_us: int) -> dict[str, object]:
        nonce = self.rng.bytes(64).hex()
        forged = bool(self.forges[host])
        snp = kind == "snp"
        found = {
            "signature_wrong": forged,
            "debug_allowed": bool(self.debug[host]),
            "evidence_stale": self.age_seconds[host] > STALE_SECONDS,
            "host_data_not_allowed": snp and self.host_data[host] != self.expected_host_data,
            "tcb_below_minimum": snp and self.snp_version[host] < LEAST_SNP,
        }
        codes = [code for code in FINDINGS if found[code]]
        if forged:
            codes = ["signature_wrong"]
        row: dict[str, object] = {
            "kind": kind,
            "device_id": self.chip_ids[host]
            if snp
            else f"i-{self.chip_ids[host][:17]}-enc{self.chip_ids[host][17:33]}",
            "digest": hashlib.sha256(nonce.encode()).hexdigest(),
            "evidence_digest": hashlib.sha256(nonce.encode() + b"+").hexdigest(),
            "verdict": "forged" if forged else "genuine",
            "policy": "none" if forged else "violated" if codes else "met",
            "availability": "checked",
            "severity": "critical" if codes else None,
            "finding_codes": f" {' '.join(codes)} ",
            "measurement": "0" * 96 if not snp and self.debug[host] else self.measurement,
            "report_data": nonce,
            "debug": bool(self.debug[host]),
            "evidence_ts": now_us - int(1e6 * self.age_seconds[host]),
            "evaluated_at": now_us,
            "policy_name": "hall",
        }
        if snp:
            row |= {f"tcb_{part}": version for part, version in TCB.items()}
            row |= {"tcb_snp": int(self.snp_version[host]), "host_data": self.host_data[host]}
            row |= {"product": "Genoa", "signer": "vcek", "vmpl": 0, "guest_svn": 1}
        return row

    def _gpu_report(self, host: int, now_us: int) -> dict[str, object]:
        on = bool(self.gpu_mode_on[host])
        digest = hashlib.sha256(self.rng.bytes(32)).hexdigest()
        return {
            "kind": "gpu",
            "device_id": hashlib.sha256(self.chip_ids[host].encode()).hexdigest()[:40],
            "digest": digest,
            "evidence_digest": digest,
            "verdict": "genuine",
            "policy": "met" if on else "violated",
            "availability": "checked",
            "severity": None if on else "high",
            "finding_codes": "  " if on else " gpu_cc_off ",
            "claims": '{"cc_mode":"on"}' if on else '{"cc_mode":"off"}',
            "evidence_ts": now_us,
            "evaluated_at": now_us,
            "policy_name": "hall",
        }


def _again(row: Mapping[str, Any], now_us: int) -> dict[str, object]:
    """Return what the evaluation of the same evidence finds later."""
    stale = now_us - row["evidence_ts"] > STALE_SECONDS * 1_000_000
    found = {"finding_codes": " evidence_stale ", "policy": "violated", "severity": "high"} if stale else {}
    return {**row, "evaluated_at": now_us, **found}


def _uuid(rng: np.random.Generator) -> str:
    d = rng.bytes(16).hex()
    return f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}"
