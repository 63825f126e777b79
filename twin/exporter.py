"""The page of a host: Prometheus text as dcgm-exporter prints it.

Order, labels and number formats follow its template and collector (dcgm-exporter, render_metrics.go and
gpu_collector.go): families by field id, whole numbers plain, doubles with six decimals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from twin.plan import DRIVER_VERSION, GPU_MODEL, Gpu, Host
from twin.sensors import Readings

Naming: TypeAlias = Literal["4.5", "4.6"]
"""Which DCGM names the operator's counter list uses; DCGM 4.6 renamed many fields and keeps the old as aliases."""


@dataclass(frozen=True, slots=True)
class Family:
    """One DCGM field on the page; `renamed` is its name from 4.6 where that differs."""

    field: int
    name: str
    kind: Literal["gauge", "counter"]
    help: str
    reading: str
    renamed: str | None = None
    form: str = "%d"


# Names by field id: NVIDIA DCGM API reference, field identifiers, of 4.5 and 4.6. Help and type:
# dcgm-exporter etc/default-counters.csv. Field 449 is listed there as a counter, yet what DCGM gives is
# the present rate in MB/s: shown as it is.
FAMILIES = (
    Family(100, "DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", "sm_clock_mhz"),
    Family(101, "DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", "memory_clock_mhz"),
    Family(112, "DEV_CLOCK_THROTTLE_REASONS", "gauge", "Current clock event reasons (bitmask).", "clock_reasons",
           "DEV_CLOCKS_EVENT_REASONS"),
    Family(140, "DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", "memory_temperature_celsius",
           "DEV_MEMORY_TEMP_CELSIUS"),
    Family(150, "DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", "temperature_celsius", "DEV_GPU_TEMP_CELSIUS"),
    Family(153, "DEV_GPU_TEMP_LIMIT", "gauge", "Thermal margin to the slowdown temperature (in C).",
           "margin_celsius", "DEV_GPU_TEMP_MARGIN_CELSIUS"),
    Family(155, "DEV_POWER_USAGE", "gauge", "Power draw (in W).", "power_watts", "DEV_BOARD_POWER_WATTS", "%f"),
    Family(156, "DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).",
           "energy_millijoules"),
    Family(202, "DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.", "pcie_replays",
           "DEV_PCIE_REPLAY_TOTAL"),
    Family(203, "DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", "utilization_percent", "DEV_GPU_UTIL_RATIO"),
    Family(204, "DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", "memory_copy_utilization_percent"),
    Family(206, "DEV_ENC_UTIL", "gauge", "Encoder utilization (in %).", "zero"),
    Family(207, "DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).", "zero"),
    Family(230, "DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", "last_xid", "DEV_XID_ERROR"),
    Family(251, "DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", "framebuffer_free_mib"),
    Family(252, "DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", "framebuffer_used_mib"),
    Family(253, "DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).", "framebuffer_reserved_mib"),
    Family(310, "DEV_ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors.",
           "ecc_corrected"),
    Family(311, "DEV_ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors.", "zero"),
    Family(393, "DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors",
           "zero", "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"),
    Family(394, "DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors",
           "correctable_remapped_rows", "DEV_ROW_REMAP_CORRECTABLE_TOTAL"),
    Family(395, "DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed", "zero",
           "DEV_ROW_REMAP_FAILED"),
    Family(449, "DEV_NVLINK_BANDWIDTH_TOTAL", "counter",
           "Total number of NVLink bandwidth counters for all lanes.", "nvlink_mb_per_second",
           "DEV_NVLINK_THROUGHPUT_TOTAL"),
    Family(526, "DEV_VGPU_LICENSE_STATUS", "gauge", "vGPU License status", "zero"),
    Family(1001, "PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.",
           "graphics_engine_ratio", "PROF_GR_ENGINE_UTIL_RATIO", "%f"),
    Family(1004, "PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active.",
           "tensor_ratio", "PROF_TENSOR_UTIL_RATIO", "%f"),
    Family(1005, "PROF_DRAM_ACTIVE", "gauge",
           "Ratio of cycles the device memory interface is active sending or receiving data.",
           "dram_ratio", "PROF_DRAM_UTIL_RATIO", "%f"),
    Family(1009, "PROF_PCIE_TX_BYTES", "gauge",
           "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads "
           "- in bytes per second.", "pcie_tx_bytes_per_second"),
    Family(1010, "PROF_PCIE_RX_BYTES", "gauge",
           "The rate of data received over the PCIe bus - including both protocol headers and data payloads "
           "- in bytes per second.", "pcie_rx_bytes_per_second"),
)  # fmt: skip

_XID_FIELD = 230
_XID_TEXTS = {0: "No Error", 79: "GPU has fallen off the bus", 154: "GPU recovery action changed"}


class Exporter:
    """The dcgm-exporter of one host: turns readings of its GPUs into its page."""

    def __init__(self, host: Host, naming: Naming) -> None:
        self._host = host
        self._naming = naming
        self._shape: tuple[tuple[bool, ...], tuple[int, ...]] | None = None
        self._template = ""

    def page(self, readings: Readings, first: int, present: Sequence[bool]) -> bytes:
        """Return the page for the host whose GPUs begin at position `first` of the readings.

        A GPU that is not present keeps one row, that of its last Xid, until the exporter forgets it.
        """
        positions = range(first, first + len(self._host.gpus))
        shape = tuple(present), tuple(int(readings["last_xid"][at]) for at in positions)
        if shape != self._shape:  # the text between the numbers changes only when a GPU comes, goes or errs
            self._template, self._shape = self._draw_template(*shape), shape
        values: list[float] = []
        for family in FAMILIES:
            row = readings[family.reading][first : positions.stop].tolist()
            values += [row[gpu.index] for gpu in self._rows(family, *shape)]
        return (self._template % tuple(values)).encode()

    def _rows(self, family: Family, present: Sequence[bool], xids: Sequence[int]) -> list[Gpu]:
        keeps = family.field == _XID_FIELD
        return [gpu for gpu in self._host.gpus if present[gpu.index] or (keeps and xids[gpu.index])]

    def _draw_template(self, present: Sequence[bool], xids: Sequence[int]) -> str:
        lines: list[str] = []
        for family in FAMILIES:
            gpus = self._rows(family, present, xids)
            if not gpus:
                continue
            name = "DCGM_FI_" + ((self._naming == "4.6" and family.renamed) or family.name)
            lines += [_escape(f"# HELP {name} {family.help}"), f"# TYPE {name} {family.kind}"]
            for gpu in gpus:
                labels = self._labels(gpu)
                if family.field == _XID_FIELD:
                    code = xids[gpu.index]
                    labels += f',err_code="{code}",err_msg="{_XID_TEXTS.get(code, "Unknown Error")}"'
                lines.append(_escape(f"{name}{{{labels}}} ") + family.form)
        return "\n".join(lines) + "\n" if lines else ""

    def _labels(self, gpu: Gpu) -> str:
        hostname = "Hostname" if self._naming == "4.5" else "hostname"
        return (
            f'gpu="{gpu.index}",UUID="{gpu.uuid}",pci_bus_id="{gpu.pci_bus_id}",device="nvidia{gpu.index}",'
            f'modelName="{GPU_MODEL}",{hostname}="{self._host.name}",DCGM_FI_DRIVER_VERSION="{DRIVER_VERSION}"'
        )


def _escape(text: str) -> str:
    """Keep a percent sign of the page from being read as a placeholder."""
    return text.replace("%", "%%")
