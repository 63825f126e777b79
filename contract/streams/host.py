"""Hosts: their processors, memory, PCIe devices, clock and boot.

Memory errors: Linux Documentation/ABI/testing/sysfs-devices-edac and admin-guide/ras. PCIe errors:
Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats. Processor time: proc(5), /proc/stat. Clock: adjtimex(2).
"""

from datetime import timedelta

from contract.stream import Column, Stream, counter, flag, gauge, state, text, time
from contract.streams.envelope import HOST


def _ratio(name: str, doc: str) -> Column:
    return gauge(name, "float64", doc, valid=(0, 1), resolution=1e-6)


def _bytes(name: str, doc: str) -> Column:
    return gauge(name, "int64", doc, valid=(0, 2**60))


def _seconds(name: str, doc: str, valid: tuple[float, float]) -> Column:
    return gauge(name, "float64", doc, valid=valid)


_BOOT_ID = text("boot_id", "The kernel's random id of this boot; another one is a reboot.", max_length=64)

HOST_SAMPLES = Stream(
    name="host_samples",
    family="host",
    version=1,
    key="host",
    partitions=6,
    interval=timedelta(seconds=10),
    rows_per_second=250,
    doc="One row per host per 10 s.",
    columns=[
        *HOST,
        _BOOT_ID,
        time("booted_at", "When the kernel started, by the host's present clock."),
        gauge("uptime_seconds", "float64", "Since then.", valid=(0, 10**10), resolution=0.01),
        text("kernel", "Release of the kernel.", max_length=255),
        gauge("cpus", "int32", "Logical processors that are online.", valid=(0, 100_000)),
        _ratio("cpu_busy_ratio", "Share of time since the row before that processors did something."),
        _ratio("cpu_user_ratio", "In programs, niced ones too, guests not."),
        _ratio("cpu_system_ratio", "In the kernel, interrupts not."),
        _ratio("cpu_interrupt_ratio", "In interrupts, hard and soft."),
        _ratio("cpu_iowait_ratio", "Idle while a disk is waited for."),
        _ratio("cpu_steal_ratio", "Taken by the hypervisor."),
        _ratio("cpu_guest_ratio", "In virtual machines."),
        gauge("load_1m", "float64", "Runnable and waiting tasks, mean of a minute.", valid=(0, 10**6)),
        gauge("load_5m", "float64", "Mean of five minutes.", valid=(0, 10**6)),
        gauge("load_15m", "float64", "Mean of fifteen minutes.", valid=(0, 10**6)),
        gauge(
            "cpu_temperature_celsius",
            "float32",
            "The hottest processor; null where no sensor tells.",
            valid=(-20, 150),
            resolution=0.5,
        ),
        gauge(
            "cpu_temperature_margin_celsius",
            "float32",
            "Degrees left to the critical temperature, of the processor that has least.",
            valid=(-50, 170),
            resolution=0.5,
        ),
        counter("core_throttles", "Times a core slowed down from heat since boot, over all cores."),
        counter("package_throttles", "Times a whole processor did, over all processors."),
        _bytes("memory_total_bytes", "Memory the kernel has."),
        _bytes("memory_available_bytes", "What programs could get without swapping."),
        _bytes("memory_free_bytes", "Used by nobody at all."),
        _bytes("memory_cached_bytes", "Cache of files."),
        _bytes("swap_total_bytes", "Swap there is."),
        _bytes("swap_free_bytes", "Swap that is free."),
        counter("oom_kills", "Processes killed for want of memory, since boot."),
        gauge(
            "memory_controllers",
            "int16",
            "Controllers that report errors; 0: no EDAC driver, so nobody counts them.",
            valid=(0, 1_000),
        ),
        counter("memory_corrected_errors", "Over all controllers since their counters were reset."),
        counter("memory_uncorrected_errors", "Over all controllers since their counters were reset."),
        gauge("gpus", "int16", "GPUs and other accelerators on the PCI bus.", valid=(0, 1_000)),
        gauge("nics", "int16", "Network devices on the PCI bus, virtual functions not.", valid=(0, 1_000)),
        gauge("nvmes", "int16", "NVMe disks on the PCI bus.", valid=(0, 1_000)),
        gauge("devices_missing", "int16", "PCI devices that are expected and not there.", valid=(0, 1_000)),
        state("clock_source", ("kernel", "chrony"), "Who was asked about the clock."),
        flag("clock_synchronised", "Whether some time service keeps the clock right."),
        _seconds(
            "clock_offset_seconds",
            "How far the clock is ahead of its time source; a kernel that chrony steers says 0.",
            (-(10**9), 10**9),
        ),
        _seconds("clock_estimated_error_seconds", "How wrong the time service thinks it is.", (0, 10**9)),
        _seconds(
            "clock_maximum_error_seconds",
            "How wrong it can be at most; grows by itself until the next answer of a time source.",
            (0, 10**9),
        ),
    ],
)

HOST_DIMMS = Stream(
    name="host_dimms",
    family="host",
    version=1,
    key="host",
    partitions=6,
    interval=timedelta(seconds=60),
    rows_per_second=1_000,
    doc="One row per memory module per minute and on change, and one per controller for errors of modules that it "
    "cannot name.",
    columns=[
        *HOST,
        text(
            "dimm",
            "`mc0/dimm3`; `mc0/csrow1/ch0` on old kernels; `mc0` for what the controller cannot place.",
            required=True,
            max_length=64,
        ),
        text("controller", "Kind of memory controller.", max_length=255),
        text("label", "Name of the slot, where the firmware or an operator gave one.", max_length=255),
        text("location", "Where the controller sees it: channel, slot.", max_length=255),
        text("memory_type", "Kind of memory.", max_length=64),
        gauge("size_mib", "int64", "Its size.", valid=(0, 2**32)),
        counter("corrected_errors", "Since boot, driver reload or a reset of the counters."),
        counter("uncorrected_errors", "Since boot, driver reload or a reset of the counters."),
        gauge(
            "corrected_errors_24h",
            "int64",
            "In the last 24 hours as far as they were watched, across reboots and resets.",
            valid=(0, 2**40),
        ),
        gauge("uncorrected_errors_24h", "int64", "Likewise.", valid=(0, 2**40)),
        gauge("reset_age_seconds", "int64", "Since the counters were reset.", valid=(0, 10**10)),
    ],
)

DEVICE_CLASSES = ("gpu", "nic", "nvme", "nvswitch", "bridge")
"""Bridge: a root port or a port of a PCIe switch, where one of the others hangs below it."""

_DEVICE_CLASS = state("device_class", DEVICE_CLASSES, "What it is, by its PCI class.")

HOST_PCIE = Stream(
    name="host_pcie",
    family="host",
    version=1,
    key="host",
    partitions=6,
    interval=timedelta(seconds=60),
    rows_per_second=2_500,
    doc="One row per GPU, NIC, NVMe disk, NVSwitch and PCIe port above them per minute and on change.",
    columns=[
        *HOST,
        text(
            "device",
            "PCI domain, bus, device and function; `gpu#1` for one that is expected and was never seen.",
            required=True,
            max_length=32,
        ),
        _DEVICE_CLASS,
        state(
            "presence",
            ("present", "missing", "withdrawn"),
            "Missing: expected and not on the bus. Withdrawn: told once when it is no longer expected.",
            required=True,
        ),
        text("vendor_id", "PCI vendor, hexadecimal.", max_length=8),
        text("device_id", "PCI device, hexadecimal.", max_length=8),
        text("upstream", "The port it hangs on.", max_length=32),
        gauge("numa_node", "int16", "The memory node it is next to.", valid=(0, 10_000)),
        gauge("link_width", "int16", "Lanes in use.", valid=(1, 64)),
        gauge("max_link_width", "int16", "Lanes that both ends have.", valid=(1, 64)),
        gauge("link_speed_gts", "float64", "Speed in use, giga-transfers per second.", valid=(1, 1_000)),
        gauge(
            "max_link_speed_gts", "float64", "What both ends can do; idle GPUs use less.", valid=(1, 1_000)
        ),
        counter("correctable_errors", "Messages since it was enumerated."),
        counter("nonfatal_errors", "Uncorrected, the link goes on; messages since it was enumerated."),
        counter("fatal_errors", "Uncorrected, the link is unreliable; messages since it was enumerated."),
        gauge(
            "correctable_errors_1h",
            "int64",
            "In the last hour as far as it was watched.",
            valid=(0, 2**40),
        ),
        text("errors", "Counts above 0 by severity and name, as JSON.", max_length=16_384),
    ],
)

HOST_EVENTS = Stream(
    name="host_events",
    family="host",
    version=1,
    key="host",
    partitions=6,
    interval=None,
    rows_per_second=1,
    doc="One row per thing that happened to a host: a reboot, errors of memory or of a PCIe device, a device that "
    "went or came back, a clock that lost its time source.",
    sparse=True,
    columns=[
        *HOST,
        state(
            "event",
            (
                "reboot",
                "dimm_ce",
                "dimm_ue",
                "edac_reset",
                "pcie_aer",
                "pcie_link",
                "device_missing",
                "device_back",
                "clock_unsynchronised",
                "clock_synchronised",
            ),
            "What happened. `dimm_ce`, `dimm_ue`: corrected, uncorrected errors. `edac_reset`: a driver or somebody "
            "set counters back. `pcie_link`: width or speed changed, an idle GPU's speed excepted.",
            required=True,
        ),
        state(
            "severity",
            ("fatal", "nonfatal", "corrected", "info"),
            "Fatal: data or a device was lost.",
            required=True,
        ),
        text("device", "The DIMM or the PCI device; null for the host itself.", max_length=64),
        _DEVICE_CLASS,
        text("label", "Name of the slot, for memory.", max_length=255),
        gauge("occurrences", "int64", "Errors since the reading before.", valid=(1, 2**40)),
        text("detail", "Names and figures.", max_length=4_096),
        _BOOT_ID,
        text("previous_boot_id", "Of the boot before, for a reboot.", max_length=64),
    ],
)

STREAMS: tuple[Stream, ...] = (HOST_SAMPLES, HOST_DIMMS, HOST_PCIE, HOST_EVENTS)
