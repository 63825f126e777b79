"""The collector of dcgm-exporter pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from contract.errors import CollectError
from contract.streams.gpu import GPU_EVENTS, GPU_INSTANCES, GPU_LINKS, GPU_SAMPLES, GPU_SWITCHES
from ingest.collector import Context, HostConfig, Reading, Rows, collector
from ingest.due import Due
from ingest.gpu.codes import CodeMemory
from ingest.gpu.exposition import Exposition, PageLimits, PageReader, distinct
from ingest.gpu.fields import DRIVER_VERSIONS
from ingest.gpu.page import Device, Entities, Page, Row
from ingest.http import PageClient, Url

_RATES = frozenset({"megabytes_per_second", "tx_bytes_per_second", "rx_bytes_per_second"})
"""Columns of a link whose every new value is no change of the link."""


class DcgmConfig(HostConfig):
    """A dcgm-exporter."""

    url: Url = Field(description="Address of its page, like `http://127.0.0.1:9400/metrics`.")
    interval_seconds: float = Field(
        default=1, gt=0, le=3600, description="Time from one reading to the next."
    )
    host_from_label: bool = Field(
        default=False,
        description="Take each row's host from its `Hostname` label: for a page that gathers several hosts. "
        "Otherwise every row is of `host`, since that label often names a container.",
    )
    max_page_bytes: int = Field(default=16_777_216, gt=0, description="A larger page is an error.")


@collector("gpu-dcgm", DcgmConfig, (GPU_SAMPLES, GPU_INSTANCES, GPU_LINKS, GPU_SWITCHES, GPU_EVENTS))
class DcgmCollector:
    """Reads GPUs and NVSwitches from a dcgm-exporter, in the names of every DCGM version to 4.6.

    A blank (DCGM's sentinels, a memory temperature of 0, a missing series) becomes null, never zero. With MIG, a
    value of the whole GPU is taken once per GPU, from its own row if it has one; an instance's own values go to
    `gpu_instances`. Two series with equal labels and different values are both dropped: nobody knows whose they are.

    Xids and SXids become rows of `gpu_events`. The exporter's gauge holds the last code for ever: it shows neither
    the same code again nor a code that another followed at once. Where `DCGM_EXP_XID_ERRORS_COUNT` is there too,
    its rises are told instead. Either way an event says "at least this"; the kernel log has the rest.

    It needs no privilege, only the way to the exporter's port. A poll costs the exporter one page of what it has
    sampled anyway, and us some 10 ms of CPU for eight GPUs, their rows checked and encoded.

    A page that does not come whole in time, is too large or is none has failed, and says nothing of any GPU. A GPU
    that is gone from the page is gone from the rows, which is no event: some GPUs never show some series. Links are
    sent when a state or an error count changes and every 60 s, switches every 10 s.
    """

    def __init__(self, config: DcgmConfig, context: Context) -> None:
        self._client = PageClient(
            config.url,
            timeout_seconds=config.timeout_seconds,
            max_bytes=config.max_page_bytes,
            clock=context.clock,
        )
        self._reader = PageReader(
            PageLimits(max_bytes=config.max_page_bytes), texts=frozenset(DRIVER_VERSIONS)
        )
        self._entities = Entities(config.host, host_from_label=config.host_from_label)
        self._memory = CodeMemory()
        self._links: dict[tuple[Device, int], dict[str, Any]] = {}
        self._links_due = Due(60)
        self._switches_due = Due(10)

    def collect(self, now_us: int) -> Reading:
        fetched = self._client.get()
        return self.read(self._reader.read(fetched.body, whole=fetched.whole), now_us)

    def read_page(self, page: bytes, now_us: int) -> Reading:
        """Turn a whole page into rows; raise CollectError where it holds none."""
        return self.read(self._reader.read(page), now_us)

    def read(self, exposition: Exposition, now_us: int) -> Reading:
        """Turn samples into rows; raise CollectError where they make none."""
        samples, dropped = distinct(exposition.samples)
        page = Page(self._entities)
        page.feed(samples)
        rows = list(self._rows(page, now_us))
        if not (page.gpus or page.links or page.switches or page.codes):
            reason = "unreadable" if exposition.rejected and not samples else "no_data"
            raise CollectError(reason, f"no GPU and no switch in {len(samples)} samples")
        return Reading(
            rows=rows,
            rejected=exposition.rejected + page.rejected + dropped,
            skipped=page.skipped,
        )

    def cursor(self) -> bytes:
        return self._memory.dump()

    def restore(self, cursor: bytes) -> None:
        self._memory.load(cursor)

    def close(self) -> None:
        self._client.close()

    def _rows(self, page: Page, now_us: int) -> Iterable[Rows]:
        switches = page.switches if self._switches_due.at(now_us) else {}
        for stream, rows in (
            (GPU_SAMPLES, [row.values() for row in page.gpus.values()]),
            (GPU_INSTANCES, [row.values() for row in page.instances.values()]),
            (GPU_LINKS, self._changed_links(page.links, now_us)),
            (GPU_SWITCHES, [row.values() for row in switches.values()]),
            (GPU_EVENTS, self._memory.events(page)),
        ):
            if rows:
                yield Rows.gather(stream, rows)

    def _changed_links(self, links: dict[tuple[Device, int], Row], now_us: int) -> list[dict[str, Any]]:
        every = self._links_due.at(now_us)
        before = self._links
        rows = {key: row.values() for key, row in links.items()}
        self._links = {
            key: {column: value for column, value in row.items() if column not in _RATES}
            for key, row in rows.items()
        }
        return [row for key, row in rows.items() if every or self._links[key] != before.get(key)]
