"""The network between hosts: what the drivers of its cards report, and how long probes take.

Linux drivers/net/ethernet/mellanox/mlx5/core, drivers/infiniband/hw/efa, net/sched/sch_generic.c (watchdog).
Ports and their counters: Linux Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/core/sysfs.c;
mlx5: NVIDIA, "Understanding mlx5 Linux counters and status parameters"; EFA: drivers/infiniband/hw/efa/efa_verbs.c.
"""

from datetime import timedelta

from contract.stream import Column, Stream, counter, flag, gauge, histogram, state, text, time
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
                "speed_lowered",
                "speed_raised",
                "width_lowered",
                "width_raised",
                "device_gone",
                "device_back",
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
        text(
            "port_id",
            "The port as fabric_ports names it, where the evidence is its counters.",
            max_length=384,
        ),
        gauge(
            "available_watts", "float32", "Power the slot gives, where it is too little.", valid=(0, 1_000)
        ),
        state(
            "evidence",
            ("kernel_log", "daemon_log", "sysfs"),
            "A daemon's log is the word of a user-space program; sysfs is what two looks at a port differ in.",
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


def _per_second(name: str, doc: str) -> Column:
    return gauge(name, "float64", f"{doc}, mean over the last minute.", valid=(0, 10**13))


_TRAFFIC = (
    counter("tx_bytes", "Sent; InfiniBand counts words of four bytes, here it is bytes."),
    counter("rx_bytes", "Received; as tx_bytes."),
    counter("tx_packets", "Sent."),
    counter("rx_packets", "Received."),
    counter("unicast_tx_packets", "Sent to one receiver."),
    counter("unicast_rx_packets", "Received, sent to one receiver."),
    counter("multicast_tx_packets", "Sent to a group."),
    counter("multicast_rx_packets", "Received, sent to a group."),
    _per_second("tx_bytes_per_second", "Sent"),
    _per_second("rx_bytes_per_second", "Received"),
)

_ERRORS = (
    counter("symbol_error", "Minor link errors on one or more lanes. Stops at 65,535."),
    counter("link_error_recovery", "Times the link recovered from errors by itself. Stops at 255."),
    counter("link_downed", "Times the link failed to recover and went down. Stops at 255."),
    counter("port_rcv_errors", "Packets received with an error. Stops at 65,535."),
    counter(
        "port_rcv_remote_physical_errors",
        "Packets received that were marked bad on the way. Stops at 65,535.",
    ),
    counter("port_rcv_switch_relay_errors", "Packets a switch could not forward. Stops at 65,535."),
    counter("port_rcv_constraint_errors", "Packets received against the rules of the port. Stops at 255."),
    counter("port_xmit_constraint_errors", "Packets not sent by the rules of the port. Stops at 255."),
    counter("port_xmit_discards", "Packets not sent: the port is down or congested. Stops at 65,535."),
    counter("local_link_integrity_errors", "Times local errors exceeded their threshold. Stops at 15."),
    counter("excessive_buffer_overrun_errors", "Times buffers overran again and again. Stops at 15."),
    counter("vl15_dropped", "Management packets dropped. Stops at 65,535."),
    counter(
        "port_xmit_wait_ticks",
        "Time with data to send and no credit, in ticks whose length is the device's own. Stops at 2^32 - 1.",
    ),
    _per_second("port_rcv_errors_per_second", "Packets received with an error"),
    _per_second("port_xmit_discards_per_second", "Packets not sent"),
    gauge(
        "symbol_errors_12_minutes",
        "int64",
        "Symbol errors of the last 12 minutes; null where they are not countable.",
        valid=(0, 10**12),
    ),
    gauge("symbol_errors_125_minutes", "int64", "Symbol errors of the last 125 minutes.", valid=(0, 10**12)),
    gauge(
        "bit_error_ratio_12_minutes",
        "float64",
        "Those of 12 minutes over the bits that the link's live speed carries in as long: never more than the truth.",
        valid=(0, 1),
    ),
    gauge("bit_error_ratio_125_minutes", "float64", "The same of 125 minutes.", valid=(0, 1)),
    text(
        "saturated",
        "Counters that stand at the most their width holds, with commas: they count no further, so no rise says "
        "nothing. Null where none.",
        max_length=1_024,
    ),
)

_TRANSPORT = (
    counter("np_cnp_sent", "Congestion notifications sent."),
    counter("np_ecn_marked_roce_packets", "RoCE packets received that were marked for congestion."),
    counter("rp_cnp_handled", "Congestion notifications received and obeyed."),
    counter("rp_cnp_ignored", "Congestion notifications received and ignored."),
    counter("out_of_sequence", "Packets received out of sequence."),
    counter("packet_seq_err", "Sequence errors told by the other side."),
    counter("implied_nak_seq_err", "Acknowledgements that imply a loss."),
    counter("local_ack_timeout_err", "Times an acknowledgement did not come in time."),
    counter("rnr_nak_retry_err", "Times the other side was not ready to receive."),
    counter("out_of_buffer", "Packets dropped for want of a receive buffer."),
    counter("duplicate_request", "Requests received twice."),
    counter("rx_icrc_encapsulated", "RoCE packets received with a bad checksum."),
    counter("roce_adp_retrans", "Adaptive retransmissions."),
    counter("roce_adp_retrans_to", "Adaptive retransmissions after a time-out."),
    counter("roce_slow_restart", "Times slow restart was used."),
    counter("roce_slow_restart_cnps", "Congestion notifications made by slow restart."),
    counter("roce_slow_restart_trans", "Times the state changed to slow restart."),
    counter("req_cqe_error", "Completions with an error, of requests."),
    counter("req_cqe_flush_error", "Completions flushed, of requests."),
    counter("req_remote_access_errors", "Requests refused by the other side's memory protection."),
    counter("req_remote_invalid_request", "Requests the other side called invalid."),
    counter("resp_cqe_error", "Completions with an error, of responses."),
    counter("resp_cqe_flush_error", "Completions flushed, of responses."),
    counter("resp_local_length_error", "Responses of a wrong length."),
    counter("resp_remote_access_errors", "Requests refused by the own memory protection."),
    counter("rx_read_requests", "READ requests received."),
    counter("rx_write_requests", "WRITE requests received."),
    counter("rx_atomic_requests", "ATOMIC requests received."),
    counter("rx_dct_connect", "DCT connection requests received."),
)

_EFA = (
    counter("rx_drops", "Packets dropped by the receiver."),
    counter("send_bytes", "Sent by send requests."),
    counter("send_wrs", "Send requests."),
    counter("recv_bytes", "Received by receive requests."),
    counter("recv_wrs", "Receive requests."),
    counter("rdma_read_wrs", "RDMA read requests."),
    counter("rdma_read_bytes", "Read from others."),
    counter("rdma_read_wr_err", "RDMA reads that failed."),
    counter("rdma_read_resp_bytes", "Sent to answer the reads of others."),
    counter("rdma_write_wrs", "RDMA write requests."),
    counter("rdma_write_bytes", "Written to others."),
    counter("rdma_write_wr_err", "RDMA writes that failed."),
    counter("rdma_write_recv_bytes", "Written by others."),
    counter("retrans_bytes", "Sent again."),
    counter("retrans_packets", "Packets sent again."),
    counter("retrans_timeout_events", "Times SRD got no answer in time and took another path."),
    counter("impaired_remote_conn_events", "Times a connection's rate was lowered."),
    counter("unresponsive_remote_events", "Times a remote did not answer at all."),
    _per_second("retrans_timeout_events_per_second", "Times SRD got no answer in time"),
    counter("submitted_cmds", "Commands given to the device, all its ports."),
    counter("completed_cmds", "Commands the device completed."),
    counter("cmds_err", "Commands that failed."),
    counter("no_completion_cmds", "Commands the device never answered."),
    counter("keep_alive_rcvd", "Signs of life from the device."),
    counter("alloc_pd_err", "Protection domains that could not be had."),
    counter("create_qp_err", "Queue pairs that could not be made."),
    counter("create_cq_err", "Completion queues that could not be made."),
    counter("reg_mr_err", "Memory that could not be registered."),
    counter("alloc_ucontext_err", "User contexts that could not be had."),
    counter("create_ah_err", "Address handles that could not be made."),
    counter("mmap_err", "Mappings that could not be made."),
)

LINK_STATES = ("no_change", "down", "init", "armed", "active", "active_defer")
"""By number, as InfiniBand's PortState."""

PHYS_STATES = (
    "no_change",
    "sleep",
    "polling",
    "disabled",
    "training",
    "link_up",
    "error_recovery",
    "phy_test",
)
"""By number, as InfiniBand's PortPhysicalState."""

OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")

FABRIC_PORTS = Stream(
    name="fabric_ports",
    family="fabric",
    version=1,
    key="host",
    partitions=12,
    interval=timedelta(seconds=10),
    rows_per_second=2_000,
    doc="One row per port of an RDMA device per 10 s: InfiniBand, RoCE and EFA. Counters are as the device gives them, "
    "in the names of its driver.",
    sort_by=("port_id", "ts"),
    columns=[
        *HOST,
        text(
            "port_id",
            "Identity: `GUID/port`; without a GUID `host/PCI address/port`, else `host/device/port`. Names of devices "
            "change, descriptions repeat.",
            required=True,
            max_length=384,
        ),
        text("device", "RDMA device.", required=True, max_length=64),
        text(
            "listing",
            "The entry of `expected` it is: `host/device as it is listed/port`; null where it is not listed.",
            max_length=384,
        ),
        gauge("port", "int16", "Number of the port.", required=True, valid=(0, 1_000)),
        text("node_guid", "GUID of the device, as in the inventory: `0x58a2e10300123456`.", max_length=18),
        text("port_guid", "GUID of an InfiniBand port.", max_length=18),
        text("pci_bus_id", "PCI domain, bus, device and function.", max_length=32),
        text("driver", "Driver of the device.", max_length=64),
        text("interface", "Network interface of the port, where it has one.", max_length=64),
        text("hca_type", "Type of the device.", max_length=255),
        text("board_id", "Board of the device.", max_length=255),
        text("firmware", "Version of its firmware.", max_length=255),
        state("link_layer", ("infiniband", "ethernet", "unknown"), "What the port speaks; EFA says unknown."),
        flag(
            "present",
            "False: it is listed and the host does not have it; only its names are known.",
            required=True,
        ),
        flag("in_use", "It is listed, or its link was active once: it should be.", required=True),
        state(
            "link_state",
            LINK_STATES,
            "State of the link. EFA's driver always says active: there it is that of the interface, null without one.",
        ),
        state(
            "phys_state", PHYS_STATES, "State of the physical link; null for EFA, whose driver makes it up."
        ),
        gauge(
            "speed_gbps",
            "float32",
            "Live speed of the link, all lanes; null while it is down.",
            valid=(0, 100_000),
        ),
        gauge("width", "int16", "Lanes in use; null while the link is down.", valid=(1, 12)),
        text("generation", "What the speed of a lane is called: EDR, HDR, NDR.", max_length=16),
        gauge(
            "expected_speed_gbps",
            "float32",
            "Speed it should have, by the configuration.",
            valid=(0, 100_000),
        ),
        gauge("expected_width", "int16", "Lanes it should have, by the configuration.", valid=(1, 12)),
        state("operstate", OPERSTATES, "State of the interface."),
        counter("carrier_changes", "Times the interface lost or got its carrier."),
        gauge(
            "uptime_seconds",
            "int64",
            "Since the host booted; links train in the first minutes.",
            valid=(0, 10**10),
        ),
        *_TRAFFIC,
        *_ERRORS,
        *_TRANSPORT,
        *_EFA,
        gauge("unreadable_files", "int16", "Files of the port that gave no value.", valid=(0, 10_000)),
    ],
)


def _times(name: str, doc: str) -> Column:
    return gauge(name, "float64", doc, valid=(0, 10**8), resolution=0.1)


def _probes(name: str, doc: str) -> Column:
    return gauge(name, "int32", doc, valid=(0, 10**9))


FABRIC_PROBES = Stream(
    name="fabric_probes",
    family="fabric",
    version=1,
    key="host",
    partitions=12,
    interval=timedelta(seconds=10),
    rows_per_second=23_000,
    doc="One row per path and window: what became of its probes, and their latency as a histogram.",
    sort_by=("path", "ts"),
    columns=[
        *HOST,
        text(
            "path",
            "From network port to network port, `host/nic>host/nic`; of a host's own delay only the one.",
            required=True,
            max_length=512,
        ),
        state(
            "latency_kind",
            ("rtt", "half_rtt", "one_way", "host_delay"),
            "What the histogram holds: there and back on the network alone, without the delay of either host; or the "
            "time in which a responder answered.",
            required=True,
        ),
        state("protocol", ("udp", "tcp", "rc", "ud", "srd"), "What carried the probes."),
        state(
            "path_class",
            ("same_leaf", "same_rail", "cross_rail", "other"),
            "How far apart the ports are, by the list of paths that was probed.",
        ),
        text("nic", "The port of this host.", max_length=255),
        text("address", "Its address, which the probes left from.", max_length=64),
        text("target_host", "The host that answers.", max_length=255),
        text("target_nic", "Its port.", max_length=255),
        text("target_address", "The address of that port.", max_length=64),
        gauge("packet_bytes", "int32", "Payload of a probe, and of its answer.", valid=(0, 65_535)),
        gauge("window_seconds", "float32", "Time the row tells of.", valid=(0, 86_400), resolution=0.001),
        _probes("sent", "Probes whose fate was known in the window: answered + late + lost."),
        _probes("answered", "Answered in time."),
        _probes("late", "Answered, but after the time-out: delayed, not lost."),
        _probes("lost", "Never answered."),
        _probes("duplicates", "Answers to what had been answered."),
        _probes("unsent", "Probes that this host's kernel refused to send; none of `sent`."),
        *histogram("rtt", "Latency of the probes answered in time."),
        _times("rtt_p50_us", "Median of the window."),
        _times("rtt_p99_us", "99th percentile of the window."),
        _times(
            "responder_delay_us", "Mean time between the arrival of a probe at its target and the answer."
        ),
        _times("prober_delay_us", "Mean time that this host itself added: program and kernel."),
        _times("limit_us", "What the median may be, as the configuration says of the class of the path."),
        _probes("recent_sent", "As `sent`, over the last minutes, as many as are configured."),
        _probes("recent_lost", "As `lost`, over the same."),
        _probes("recent_count", "Latencies over the same."),
        _times("recent_p50_us", "Their median."),
        _times("recent_p99_us", "Their 99th percentile."),
        text("source_ports", "UDP ports the probes left from; each may take another way.", max_length=4_096),
        _probes("dead_port_count", "How many of them lost probe after probe while the others got answers."),
        text(
            "dead_ports",
            "Which: somewhere on the way that their packets take is a black hole.",
            max_length=4_096,
        ),
        _probes("dead_port_losses", "Fewest losses in a row among them; the more, the less by chance."),
    ],
)


STREAMS = (FABRIC_EVENTS, FABRIC_PORTS, FABRIC_PROBES)
