"""Which DCGM field fills which column: the mapping as a table, by the names of every version.

Ids and names: NVIDIA DCGM API reference, "Field Identifiers"; the new names: DCGM 4.6 dcgmlib/dcgm_fields.h, section
"deprecated field names". A new name does not change the value: GPU_UTIL_RATIO is still 0 to 100, copied from
nvmlUtilization_t (DCGM 4.6 dcgmlib/src/DcgmCacheManager.cpp, case DCGM_FI_DEV_GPU_UTIL_RATIO). Units otherwise:
dcgm-exporter etc/default-counters.csv. NVLINK_BANDWIDTH and NVLINK_THROUGHPUT are listed there as counters, but
DCGM divides by the time between two readings (DcgmCacheManager.cpp, ReadAndCacheNvLinkBandwidth): a rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "DCGM_FI_"

_UNCORRECTABLE_ROWS = "DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"
_CRC_FLIT = "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL DEV_NVLINK_CRC_FLIT_ERROR_TOTAL"
_CRC_DATA = "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL DEV_NVLINK_CRC_DATA_ERROR_TOTAL"
_REPLAYS = "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL DEV_NVLINK_REPLAY_ERROR_TOTAL"
_RECOVERIES = "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL DEV_NVLINK_RECOVERY_ERROR_TOTAL"
_RECOVERIES_DONE = "DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS DEV_NVLINK_RECOVERY_SUCCESSFUL_TOTAL"
_RECOVERIES_FAILED = "DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS DEV_NVLINK_RECOVERY_FAILED_TOTAL"
_SYMBOL_ERRORS = "DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS DEV_NVLINK_RX_SYMBOL_ERROR_TOTAL"
_SYMBOL_BER = "DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT DEV_NVLINK_SYMBOL_BER_RATIO"
_EFFECTIVE_BER = "DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT DEV_NVLINK_EFFECTIVE_BER_RATIO"
_SWITCH_SLOWDOWN = "DEV_NVSWITCH_TEMPERATURE_LIMIT_SLOWDOWN DEV_NVSWITCH_TEMP_SLOWDOWN_CELSIUS"
_SWITCH_SHUTDOWN = "DEV_NVSWITCH_TEMPERATURE_LIMIT_SHUTDOWN DEV_NVSWITCH_TEMP_SHUTDOWN_CELSIUS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A DCGM field and the column it fills."""

    column: str
    counts: bool = False
    """A count, which may truly reach the values that stand for a blank in a gauge."""
    bits: bool = False
    """A set of bits."""
    own: bool = False
    """A MIG instance has a value of its own; of any other field its rows repeat the whole GPU's."""
    zero_is_blank: bool = False
    words: Mapping[int, str] | None = None
    """For a state: what each number means; of any other number the meaning is unknown."""
    rank: int = 0
    """Where several fields fill one column, the lowest wins."""
    link: int | None = None
    """The link, where the field's name holds it."""


def _fields(rows: Sequence[tuple[int, str, str]], **traits: Any) -> dict[str, Field]:
    """Read rows of (field id, column, names of all versions)."""
    return {
        PREFIX + name: Field(column=column, **traits) for _, column, names in rows for name in names.split()
    }


GPU_FIELDS: dict[str, Field] = {
    **_fields(
        [
            (100, "sm_clock_mhz", "DEV_SM_CLOCK"),
            (101, "memory_clock_mhz", "DEV_MEM_CLOCK"),
            (150, "temperature_celsius", "DEV_GPU_TEMP DEV_GPU_TEMP_CELSIUS"),
            (153, "temperature_margin_celsius", "DEV_GPU_TEMP_LIMIT DEV_GPU_TEMP_MARGIN_CELSIUS"),
            (155, "power_watts", "DEV_POWER_USAGE DEV_BOARD_POWER_WATTS"),
            (203, "utilization_percent", "DEV_GPU_UTIL DEV_GPU_UTIL_RATIO"),
            (204, "memory_copy_utilization_percent", "DEV_MEM_COPY_UTIL"),
            (206, "encoder_utilization_percent", "DEV_ENC_UTIL"),
            (207, "decoder_utilization_percent", "DEV_DEC_UTIL"),
            (230, "last_xid", "DEV_XID_ERRORS DEV_XID_ERROR"),
            (395, "row_remap_failed", "DEV_ROW_REMAP_FAILURE DEV_ROW_REMAP_FAILED"),
            (396, "row_remap_pending", "DEV_ROW_REMAP_PENDING"),
            (449, "nvlink_megabytes_per_second", "DEV_NVLINK_BANDWIDTH_TOTAL DEV_NVLINK_THROUGHPUT_TOTAL"),
            (526, "vgpu_license_status", "DEV_VGPU_LICENSE_STATUS"),
            (1009, "pcie_tx_bytes_per_second", "PROF_PCIE_TX_BYTES"),
            (1010, "pcie_rx_bytes_per_second", "PROF_PCIE_RX_BYTES"),
            (1011, "nvlink_tx_bytes_per_second", "PROF_NVLINK_TX_BYTES"),
            (1012, "nvlink_rx_bytes_per_second", "PROF_NVLINK_RX_BYTES"),
            (1216, "nvlink_symbol_bit_error_ratio", _SYMBOL_BER),
            (1218, "nvlink_effective_bit_error_ratio", _EFFECTIVE_BER),
        ]
    ),
    **_fields(
        [
            (251, "framebuffer_free_mib", "DEV_FB_FREE"),
            (252, "framebuffer_used_mib", "DEV_FB_USED"),
            (253, "framebuffer_reserved_mib", "DEV_FB_RESERVED"),
            (1001, "graphics_engine_active_ratio", "PROF_GR_ENGINE_ACTIVE PROF_GR_ENGINE_UTIL_RATIO"),
            (1002, "sm_active_ratio", "PROF_SM_ACTIVE PROF_SM_UTIL_RATIO"),
            (1003, "sm_occupancy_ratio", "PROF_SM_OCCUPANCY PROF_SM_OCCUPANCY_RATIO"),
            (1004, "tensor_active_ratio", "PROF_PIPE_TENSOR_ACTIVE PROF_TENSOR_UTIL_RATIO"),
            (1005, "dram_active_ratio", "PROF_DRAM_ACTIVE PROF_DRAM_UTIL_RATIO"),
            (1006, "fp64_active_ratio", "PROF_PIPE_FP64_ACTIVE PROF_FP64_UTIL_RATIO"),
            (1007, "fp32_active_ratio", "PROF_PIPE_FP32_ACTIVE PROF_FP32_UTIL_RATIO"),
            (1008, "fp16_active_ratio", "PROF_PIPE_FP16_ACTIVE PROF_FP16_UTIL_RATIO"),
        ],
        own=True,
    ),
    **_fields(
        [
            (156, "energy_millijoules", "DEV_TOTAL_ENERGY_CONSUMPTION"),
            (202, "pcie_replays", "DEV_PCIE_REPLAY_COUNTER DEV_PCIE_REPLAY_TOTAL"),
            (310, "ecc_single_bit_volatile", "DEV_ECC_SBE_VOL_TOTAL"),
            (311, "ecc_double_bit_volatile", "DEV_ECC_DBE_VOL_TOTAL"),
            (312, "ecc_single_bit_aggregate", "DEV_ECC_SBE_AGG_TOTAL"),
            (313, "ecc_double_bit_aggregate", "DEV_ECC_DBE_AGG_TOTAL"),
            (390, "retired_pages_single_bit", "DEV_RETIRED_SBE DEV_PAGE_RETIRED_SBE_TOTAL"),
            (391, "retired_pages_double_bit", "DEV_RETIRED_DBE DEV_PAGE_RETIRED_DBE_TOTAL"),
            (393, "uncorrectable_remapped_rows", _UNCORRECTABLE_ROWS),
            (
                394,
                "correctable_remapped_rows",
                "DEV_CORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_CORRECTABLE_TOTAL",
            ),
            (409, "nvlink_crc_flit_errors", _CRC_FLIT),
            (419, "nvlink_crc_data_errors", _CRC_DATA),
            (429, "nvlink_replays", _REPLAYS),
            (439, "nvlink_recoveries", _RECOVERIES),
            (1212, "nvlink_recoveries_failed", _RECOVERIES_FAILED),
            (1214, "nvlink_symbol_errors", _SYMBOL_ERRORS),
        ],
        counts=True,
    ),
    **_fields(
        [(112, "clock_event_reasons", "DEV_CLOCK_THROTTLE_REASONS DEV_CLOCKS_EVENT_REASONS")], bits=True
    ),
    # A memory temperature of 0 is what a GPU without that sensor shows (NVIDIA/DCGM pull request 311).
    **_fields(
        [(140, "memory_temperature_celsius", "DEV_MEMORY_TEMP DEV_MEMORY_TEMP_CELSIUS")], zero_is_blank=True
    ),
    **_fields([(157, "power_watts", "DEV_POWER_USAGE_INSTANT DEV_BOARD_POWER_RAW_WATTS")], rank=1),
    # From NVLink 5 on field 1211 takes the place of 439.
    **_fields([(1211, "nvlink_recoveries", _RECOVERIES_DONE)], counts=True, rank=1),
}
"""Fields of a GPU, which the rows of its MIG instances repeat."""

_NVML_LINK_STATES = {0: "down", 1: "up", 2: "up"}
"""Inactive, active, asleep: NVML nvml.h, NVML_NVLINK_STATE_*."""

_SWITCH_LINK_STATES = {0: "disabled", 1: "disabled", 2: "up", 3: "down", 4: "up"}
"""Off, safe, active, error, asleep, as DCGM itself reads them (modules/nvswitch/DcgmNscqManager.cpp); -1 = unknown."""

LINK_FIELDS: dict[str, Field] = {
    **_fields(
        [
            (1525, "crc_flit_errors", f"{_CRC_FLIT} DEV_NVLINK_CRC_FLIT_ERROR_PER_LINK_TOTAL"),
            (1526, "crc_data_errors", f"{_CRC_DATA} DEV_NVLINK_CRC_DATA_ERROR_PER_LINK_TOTAL"),
            (1527, "replays", f"{_REPLAYS} DEV_NVLINK_REPLAY_ERROR_PER_LINK_TOTAL"),
            (1528, "recoveries", f"{_RECOVERIES} DEV_NVLINK_RECOVERY_ERROR_PER_LINK_TOTAL"),
            (1212, "recoveries_failed", _RECOVERIES_FAILED),
            (1214, "symbol_errors", _SYMBOL_ERRORS),
            (784, "replays", "DEV_NVSWITCH_LINK_REPLAY_ERRORS DEV_NVSWITCH_LINK_REPLAY_ERROR_TOTAL"),
            (785, "recoveries", "DEV_NVSWITCH_LINK_RECOVERY_ERRORS DEV_NVSWITCH_LINK_RECOVERY_ERROR_TOTAL"),
            (786, "crc_flit_errors", "DEV_NVSWITCH_LINK_FLIT_ERRORS DEV_NVSWITCH_LINK_FLIT_ERROR_TOTAL"),
            (787, "crc_data_errors", "DEV_NVSWITCH_LINK_CRC_ERRORS DEV_NVSWITCH_LINK_CRC_ERROR_TOTAL"),
        ],
        counts=True,
    ),
    **_fields([(1211, "recoveries", _RECOVERIES_DONE)], counts=True, rank=1),
    **_fields(
        [
            (1529, "megabytes_per_second", "DEV_NVLINK_THROUGHPUT_PER_LINK"),
            (1532, "tx_bytes_per_second", "PROF_NVLINK_TX_BYTES_PER_LINK"),
            (1533, "rx_bytes_per_second", "PROF_NVLINK_RX_BYTES_PER_LINK"),
            (1216, "symbol_bit_error_ratio", _SYMBOL_BER),
            (1218, "effective_bit_error_ratio", _EFFECTIVE_BER),
        ]
    ),
    **_fields([(1508, "link_state", "DEV_NVLINK_GET_STATE")], words=_NVML_LINK_STATES),
    **_fields([(870, "link_state", "DEV_NVSWITCH_LINK_STATUS")], words=_SWITCH_LINK_STATES),
}
"""Fields of a link, of a GPU or of a switch: their series have a label `nvlink`."""

_NUMBERED = (
    ("crc_flit_errors", True, "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L{0} DEV_NVLINK_CRC_FLIT_ERROR_L{0}_TOTAL"),
    ("crc_data_errors", True, "DEV_NVLINK_CRC_DATA_ERROR_COUNT_L{0} DEV_NVLINK_CRC_DATA_ERROR_L{0}_TOTAL"),
    ("replays", True, "DEV_NVLINK_REPLAY_ERROR_COUNT_L{0} DEV_NVLINK_REPLAY_ERROR_L{0}_TOTAL"),
    ("recoveries", True, "DEV_NVLINK_RECOVERY_ERROR_COUNT_L{0} DEV_NVLINK_RECOVERY_ERROR_L{0}_TOTAL"),
    ("megabytes_per_second", False, "DEV_NVLINK_BANDWIDTH_L{0} DEV_NVLINK_THROUGHPUT_L{0}"),
    ("tx_bytes_per_second", False, "PROF_NVLINK_L{0}_TX_BYTES"),
    ("rx_bytes_per_second", False, "PROF_NVLINK_L{0}_RX_BYTES"),
)

NUMBERED_LINK_FIELDS: dict[str, Field] = {
    PREFIX + name.format(link): Field(column=column, counts=counts, link=link)
    for column, counts, names in _NUMBERED
    for name in names.split()
    for link in range(18)
}
"""Fields of a GPU whose names hold the number of a link: 400 to 496, 1040 to 1075. Links from 18 on have none."""

SWITCH_FIELDS: dict[str, Field] = _fields(
    [
        (856, "last_fatal_sxid", "DEV_NVSWITCH_FATAL_ERRORS DEV_SXID_FATAL_ERROR"),
        (857, "last_nonfatal_sxid", "DEV_NVSWITCH_NON_FATAL_ERRORS DEV_SXID_NON_FATAL_ERROR"),
        (858, "temperature_celsius", "DEV_NVSWITCH_TEMPERATURE_CURRENT DEV_NVSWITCH_TEMP_CELSIUS"),
        (859, "slowdown_temperature_celsius", _SWITCH_SLOWDOWN),
        (860, "shutdown_temperature_celsius", _SWITCH_SHUTDOWN),
    ]
)
"""Fields of an NVSwitch: their series have a label `nvswitch`."""

XID_COUNTS = frozenset({"DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_XID_ERRORS_ACTIVE"})
"""Xids of the last few minutes by code: dcgm-exporter internal/pkg/collector/xid_collector.go; the second name is
that of its first proposal (NVIDIA/dcgm-exporter pull request 239)."""

DRIVER_VERSIONS = ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION")
"""Field 1: a label on every series, or, where the operator's list says so, a family of its own."""

_INT32_BLANK = 0x7FFFFFF0
_INT64_BLANK = 0x7FFFFFFFFFFFFFF0
_FP64_BLANK = 140_737_488_355_328.0
_KINDS_OF_BLANK = 4  # blank, not found, not supported, not permitted


def is_blank(value: float, *, counts: bool) -> bool:
    """Tell a value that stands for none: DCGM dcgmlib/dcgm_structs.h, DCGM_*_BLANK and the three after each.

    As a float every 64-bit blank reads 9223372036854775808, above them all; so blanks are compared by order. A count
    may truly pass the other two ranges, so there only the four values themselves are blank.
    """
    if value < _INT32_BLANK:
        return False
    if counts:
        return (
            value >= _INT64_BLANK
            or value < _INT32_BLANK + _KINDS_OF_BLANK
            or _FP64_BLANK <= value < _FP64_BLANK + _KINDS_OF_BLANK
        )
    return value <= 0x7FFFFFFF or value >= _FP64_BLANK


def is_blank_text(text: str) -> bool:
    """Tell a text that stands for none: `<<<NULL>>>`, `<<<NOT_SUPPORTED>>>` and their like (DCGM_STR_IS_BLANK)."""
    return not text or (text.startswith("<<<") and ">>>" in text)
