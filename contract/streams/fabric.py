"""The network between hosts: what the drivers of its cards report.

Linux drivers/net/ethernet/mellanox/mlx5/core, drivers/infiniband/hw/efa, net/sched/sch_generic.c (watchdog).
"""

from contract.stream import Stream, gauge, state, text, time
from contract.streams.envelope import HOST

FABRIC_EVENTS = Stream(
    name="fabric_events",
    family="fabric",
    version=1,
    key="host",
    partitions=6,
    interval=None,
    rows_per_second=5,
    doc="One row per thing that happened to a network card or its link, repeats gathered.",
    sort_by=("host", "ts"),
    sparse=True,
    columns=[
        *HOST,
        state(
            "event",
            (
                "link_down",
                "link_up",
                "cmd_exec_timeout",
                "health_poll_failed",
                "unrecoverable",
                "device_reset_failed",
                "netdev_watchdog",
                "access_reg_failed",
                "module_error",
                "module_unplugged",
                "port_module_high_temp",
                "pci_power_insufficient",
                "peermem_error",
            ),
            "What happened.",
            required=True,
        ),
        text(
            "nic",
            "The card: its PCI address where the line has one, else its RDMA device or interface; null where the "
            "line names none.",
            max_length=64,
        ),
        text("pci_bus_id", "PCI domain, bus, device and function.", max_length=32),
        text("interface", "Network interface, where one is named.", max_length=64),
        text("driver", "Driver of the card.", max_length=64),
        gauge("port", "int16", "Port, or module, where one is named.", valid=(0, 1_000)),
        gauge(
            "available_watts", "float32", "Power the slot gives, where it is too little.", valid=(0, 1_000)
        ),
        state(
            "evidence",
            ("kernel_log", "daemon_log"),
            "A daemon's log is the word of a user-space program.",
            required=True,
        ),
        state(
            "severity",
            ("fatal", "nonfatal", "info"),
            "Fatal: the card no longer works until it is reset, restarted or replaced.",
        ),
        state(
            "class",
            ("hardware", "link", "driver", "facility", "information"),
            "Whose trouble it is: see gpu_events.",
        ),
        gauge("occurrences", "int32", "How many; at least 1.", valid=(1, 1_000_000)),
        time("first_ts", "When the first of these occurrences was; null where there is one."),
        text("detail", "What the source said."),
    ],
)

STREAMS = (FABRIC_EVENTS,)
