"""GPUs as their management library reports them, and what their driver tells of them.

What a sample means: NVIDIA DCGM API reference, field identifiers. Xid: NVIDIA Xid catalog; SXid: NVIDIA Fabric Manager
user guide, appendix D.
"""

from datetime import timedelta

from contract.stream import Column, Stream, bitmask, counter, gauge, state, text, time
from contract.streams.envelope import HOST

CLOCK_EVENT_BITS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "software_power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "hardware_power_brake",
    0x100: "display_clocks",
}
"""NVML API reference, clock event reasons."""

_GPU = (
    text(
        "gpu_uuid", "The GPU's own identity; a replaced card brings a new one.", required=True, max_length=96
    ),
    gauge("gpu_index", "int16", "Index on its host; may change at a reboot."),
    text("pci_bus_id", "PCI domain, bus, device and function.", max_length=32),
)

_WORKLOAD = (
    text("namespace", "Namespace of the pod that holds the GPU.", max_length=255),
    text("pod", "Pod that holds the GPU.", max_length=255),
    text("container", "Container that holds the GPU.", max_length=255),
    text("hpc_job", "Batch job that holds the GPU.", max_length=255),
)


def _ratio(name: str, doc: str) -> Column:
    return gauge(name, "float64", doc, valid=(0, 1), resolution=1e-6)


def _percent(name: str, doc: str) -> Column:
    return gauge(name, "int16", doc, valid=(0, 100))


_ACTIVITY = (
    _ratio("graphics_engine_active_ratio", "Share of time the graphics or compute engine was busy."),
    _ratio("sm_active_ratio", "Share of cycles with at least one warp on an SM, mean over the SMs."),
    _ratio("sm_occupancy_ratio", "Resident warps over the most possible."),
    _ratio("tensor_active_ratio", "Share of cycles the tensor pipe was busy."),
    _ratio("fp64_active_ratio", "Share of cycles the FP64 pipe was busy."),
    _ratio("fp32_active_ratio", "Share of cycles the FP32 pipe was busy."),
    _ratio("fp16_active_ratio", "Share of cycles the FP16 pipe was busy."),
    _ratio("dram_active_ratio", "Share of cycles the memory interface moved data."),
)

GPU_SAMPLES = Stream(
    name="gpu_samples",
    family="gpu",
    version=1,
    key="host",
    partitions=24,
    interval=timedelta(seconds=1),
    rows_per_second=20_000,
    doc="One row per whole GPU per tick.",
    sort_by=("gpu_uuid", "ts"),
    columns=[
        *HOST,
        *_GPU,
        text("model", "Product name.", max_length=255),
        text("driver_version", "Version of the kernel driver.", max_length=64),
        *_WORKLOAD,
        gauge("temperature_celsius", "float32", "Core temperature.", valid=(-20, 150), resolution=1),
        gauge(
            "memory_temperature_celsius",
            "float32",
            "Hottest memory stack; null where the GPU does not report it.",
            valid=(-20, 150),
            resolution=1,
        ),
        gauge(
            "temperature_margin_celsius",
            "float32",
            "Degrees left to the slowdown temperature (T.Limit); 0 and below slows the GPU.",
            valid=(-100, 150),
            resolution=1,
        ),
        gauge("power_watts", "float64", "Board power.", valid=(0, 3_000), resolution=0.001),
        counter("energy_millijoules", "Since driver load."),
        gauge("sm_clock_mhz", "int32", "Clock of the SMs.", valid=(0, 10_000)),
        gauge("memory_clock_mhz", "int32", "Clock of the memory.", valid=(0, 20_000)),
        bitmask("clock_event_reasons", CLOCK_EVENT_BITS, "Why the clocks are below their highest."),
        _percent("utilization_percent", "Share of time at least one kernel ran."),
        _percent("memory_copy_utilization_percent", "Share of time memory was read or written."),
        _percent("encoder_utilization_percent", "Video encoder."),
        _percent("decoder_utilization_percent", "Video decoder."),
        gauge("framebuffer_used_mib", "int32", "Memory in use.", valid=(0, 4_194_304)),
        gauge("framebuffer_free_mib", "int32", "Memory free.", valid=(0, 4_194_304)),
        gauge("framebuffer_reserved_mib", "int32", "Memory the driver keeps.", valid=(0, 4_194_304)),
        *_ACTIVITY,
        gauge("pcie_tx_bytes_per_second", "int64", "Sent by the GPU.", valid=(0, 10**12)),
        gauge("pcie_rx_bytes_per_second", "int64", "Received by the GPU.", valid=(0, 10**12)),
        gauge("nvlink_tx_bytes_per_second", "int64", "Sent over all links.", valid=(0, 10**13)),
        gauge("nvlink_rx_bytes_per_second", "int64", "Received over all links.", valid=(0, 10**13)),
        gauge(
            "nvlink_megabytes_per_second",
            "int64",
            "Payload over all links, both directions; its exporter calls it a counter of bandwidth.",
            valid=(0, 10**7),
        ),
        counter("pcie_replays", "Since driver load; resets on driver reload or GPU reset."),
        gauge(
            "last_xid",
            "int32",
            "Code of the last Xid, kept by the driver until a reset; 0 = none.",
            valid=(0, 1_000),
        ),
        counter("ecc_single_bit_volatile", "Corrected errors since driver load."),
        counter("ecc_double_bit_volatile", "Uncorrected errors since driver load."),
        counter("ecc_single_bit_aggregate", "Corrected errors since the board was made."),
        counter("ecc_double_bit_aggregate", "Uncorrected errors since the board was made."),
        counter("correctable_remapped_rows", "Memory rows replaced after corrected errors."),
        counter("uncorrectable_remapped_rows", "Memory rows replaced after uncorrected errors."),
        gauge("row_remap_failed", "int8", "1: a memory row could not be replaced.", valid=(0, 1)),
        gauge("row_remap_pending", "int8", "1: a replacement waits for a reset.", valid=(0, 1)),
        counter("retired_pages_single_bit", "Memory pages retired after corrected errors."),
        counter("retired_pages_double_bit", "Memory pages retired after uncorrected errors."),
        counter("nvlink_crc_flit_errors", "Flit CRC errors over all links."),
        counter("nvlink_crc_data_errors", "Data CRC errors over all links."),
        counter("nvlink_replays", "Replays over all links."),
        counter("nvlink_recoveries", "Recoveries over all links."),
        counter("nvlink_recoveries_failed", "Recoveries that did not bring a link back, over all links."),
        counter("nvlink_symbol_errors", "Symbol errors over all links."),
        gauge(
            "nvlink_symbol_bit_error_ratio", "float64", "Bit errors per bit before correction.", valid=(0, 1)
        ),
        gauge(
            "nvlink_effective_bit_error_ratio",
            "float64",
            "Bit errors per bit after correction.",
            valid=(0, 1),
        ),
        gauge("vgpu_license_status", "int8", "0: not licensed or not needed.", valid=(0, 100)),
    ],
)

GPU_INSTANCES = Stream(
    name="gpu_instances",
    family="gpu",
    version=1,
    key="host",
    partitions=24,
    interval=timedelta(seconds=1),
    rows_per_second=100,
    doc="One row per MIG instance per tick: only what is the instance's own; the whole GPU is in gpu_samples.",
    sort_by=("gpu_uuid", "ts"),
    columns=[
        *HOST,
        *_GPU,
        gauge("instance", "int32", "GPU instance id.", required=True, valid=(0, 1_000)),
        text(
            "profile",
            "Profile as reported; its text is rounded differently by driver, so never compare it.",
            max_length=64,
        ),
        *_WORKLOAD,
        gauge("framebuffer_used_mib", "int32", "Memory in use.", valid=(0, 4_194_304)),
        gauge("framebuffer_free_mib", "int32", "Memory free.", valid=(0, 4_194_304)),
        gauge("framebuffer_reserved_mib", "int32", "Memory the driver keeps.", valid=(0, 4_194_304)),
        *_ACTIVITY,
    ],
)

GPU_LINKS = Stream(
    name="gpu_links",
    family="gpu",
    version=1,
    key="host",
    partitions=6,
    interval=timedelta(seconds=60),
    rows_per_second=6_000,
    doc="One row per NVLink, of a GPU or of a switch, per minute and on change.",
    sort_by=("host", "ts"),
    columns=[
        *HOST,
        text("gpu_uuid", "The GPU it belongs to; null for a switch's link.", max_length=96),
        gauge("gpu_index", "int16", "Index of that GPU on its host."),
        text("nvswitch", "The switch it belongs to; null for a GPU's link.", max_length=64),
        gauge("link", "int16", "Number of the link on its device.", required=True, valid=(0, 1_000)),
        state("link_state", ("up", "down", "disabled", "not_supported"), "State as reported."),
        counter("crc_flit_errors", "Flit CRC errors."),
        counter("crc_data_errors", "Data CRC errors."),
        counter("replays", "Replays."),
        counter("recoveries", "Recoveries."),
        counter("recoveries_failed", "Recoveries that did not bring the link back."),
        counter("symbol_errors", "Symbol errors."),
        gauge("symbol_bit_error_ratio", "float64", "Bit errors per bit before correction.", valid=(0, 1)),
        gauge("effective_bit_error_ratio", "float64", "Bit errors per bit after correction.", valid=(0, 1)),
        gauge("megabytes_per_second", "int64", "Payload, both directions.", valid=(0, 10**6)),
        gauge("tx_bytes_per_second", "int64", "Sent.", valid=(0, 10**12)),
        gauge("rx_bytes_per_second", "int64", "Received.", valid=(0, 10**12)),
    ],
)

GPU_SWITCHES = Stream(
    name="gpu_switches",
    family="gpu",
    version=1,
    key="host",
    partitions=6,
    interval=timedelta(seconds=10),
    rows_per_second=1_000,
    doc="One row per NVSwitch per 10 s.",
    sort_by=("host", "ts"),
    columns=[
        *HOST,
        text("nvswitch", "Name of the switch on its host.", required=True, max_length=64),
        gauge("temperature_celsius", "float32", "Temperature.", valid=(-20, 150), resolution=1),
        gauge(
            "slowdown_temperature_celsius", "float32", "Where it slows down.", valid=(-20, 200), resolution=1
        ),
        gauge(
            "shutdown_temperature_celsius", "float32", "Where it shuts down.", valid=(-20, 200), resolution=1
        ),
        gauge("last_fatal_sxid", "int32", "Code of the last fatal SXid; 0 = none.", valid=(0, 100_000)),
        gauge(
            "last_nonfatal_sxid", "int32", "Code of the last non-fatal SXid; 0 = none.", valid=(0, 100_000)
        ),
    ],
)

EVENT_CLASSES = (
    "application",
    "hardware",
    "link",
    "driver",
    "security",
    "facility",
    "information",
    "follower",
    "legacy",
    "unknown",
)
"""Whose trouble it is: the program's, the device's, an NVLink's, the software's beneath, the owner's of the secrets,
the hall's (heat, power); or nobody's: it only tells, only follows another code, or belongs to older products."""

EVENT_ACTIONS = (
    "none",
    "restart_application",
    "restart_vm",
    "restart_fabric_manager",
    "drain_p2p",
    "drain_and_reset",
    "reset_gpu",
    "reset_fabric",
    "restart_host",
    "check_cooling",
    "check_power",
    "check_mechanicals",
    "update_software",
    "follow_recovery_action",
    "contact_support",
    "unknown",
)
"""What the maker asks for at once."""

GPU_EVENTS = Stream(
    name="gpu_events",
    family="gpu",
    version=1,
    key="host",
    partitions=6,
    interval=None,
    rows_per_second=5,
    doc="One row per thing that happened to a GPU, another accelerator or an NVSwitch, repeats gathered: an Xid, an "
    "SXid, lost, reset.",
    sort_by=("host", "ts"),
    sparse=True,
    columns=[
        *HOST,
        state(
            "event",
            ("xid", "sxid", "lost", "reset", "device_error"),
            "What happened. Reset: its driver loaded (a row for each GPU known, one without a GPU for the host), an "
            "Xid 154 says that nothing is required any more, or another maker's driver reset it.",
            required=True,
        ),
        text("gpu_uuid", "The GPU; null where the evidence names none.", max_length=96),
        gauge("gpu_index", "int16", "Index of that GPU on its host."),
        text("pci_bus_id", "PCI domain, bus, device and function.", max_length=32),
        text("nvswitch", "The switch, for an SXid.", max_length=64),
        gauge("link", "int16", "The link, where one is named.", valid=(0, 1_000)),
        gauge("code", "int32", "Xid or SXid code.", valid=(0, 100_000)),
        state(
            "evidence",
            ("kernel_log", "daemon_log", "window_count", "last_code"),
            "A last code hides repeats and earlier codes: it says at least this, never only this. A daemon's log is "
            "the word of a user-space program.",
            required=True,
        ),
        gauge(
            "occurrences", "int32", "How many the evidence shows at once; at least 1.", valid=(1, 1_000_000)
        ),
        text("detail", "What the source said."),
        text("name", "What the code, or the error of another maker, is called.", max_length=255),
        state(
            "severity",
            ("fatal", "nonfatal", "info", "unknown"),
            "Fatal: the device needs a reset, a restart or a repair. The kernel's own word where it says one.",
        ),
        state("class", EVENT_CLASSES, "Whose trouble it is."),
        state("action", EVENT_ACTIONS, "What the maker asks for at once."),
        text("unit", "The part of the device: `GPC 1 TPC 3`, an NVLink unit, a memory block.", max_length=64),
        gauge("subcode", "int16", "Decoded subcode of an NVLink 5 error.", valid=(0, 127)),
        text("reason", "Decoded reason: of a link that went down, of a register's bit.", max_length=255),
        gauge(
            "caused_by_code",
            "int32",
            "Code of the Xid that the driver names as the cause.",
            valid=(0, 100_000),
        ),
        gauge("pid", "int64", "Process that used the GPU, where one is named.", valid=(0, 2**32)),
        text("process", "Name of that process.", max_length=64),
        time("first_ts", "When the first of these occurrences was; null where there is one."),
        text("driver_version", "Version of the kernel driver, where it is known.", max_length=64),
    ],
)

STREAMS = (GPU_SAMPLES, GPU_INSTANCES, GPU_LINKS, GPU_SWITCHES, GPU_EVENTS)
