"""The hall as it should be: what is there and how it is joined, which job runs where, and what work is announced."""

from contract.stream import Stream, flag, gauge, state, text, time
from contract.streams.envelope import HALL

ASSET_KINDS = (
    "hall",
    "row",
    "rack",
    "cdu",
    "host",
    "gpu",
    "nic",
    "loop",
    "detector",
    "meter",
    "rail",
    "leaf",
    "spine",
    "link",
    "trust_root",
)

INVENTORY = Stream(
    name="inventory",
    family="topology",
    version=1,
    key="hall",
    partitions=1,
    interval=None,
    rows_per_second=1,
    doc="One row per version of an asset or a cable: only what changed since the version before; removal is a state.",
    sort_by=("asset", "ts"),
    sparse=True,
    columns=[
        *HALL,
        text("hall", "The hall.", required=True, max_length=255),
        text(
            "asset",
            "Identity: a GPU's UUID, `host/nic` (`host/nic/2` for another port than its first), a cable's two ends, "
            "else the name, unique in the hall.",
            required=True,
            max_length=255,
        ),
        state("kind", ASSET_KINDS, "What it is; a link is the cable between two ports.", required=True),
        text(
            "parent",
            "The asset it stands in; what a detector or a meter is for; the upper end of a link; null for the hall.",
            max_length=255,
        ),
        text(
            "cdu",
            "The coolant distribution unit that cools it, for a rack; that drives it, for a loop.",
            max_length=255,
        ),
        text("model", "Product name.", max_length=255),
        gauge("position", "int16", "Index on its host, for a GPU; its number, for a rail."),
        text("pci_bus_id", "PCI domain, bus, device and function.", max_length=32),
        text("guid", "Port GUID, for a NIC.", max_length=64),
        gauge(
            "speed_gbps",
            "int32",
            "Speed that a NIC or a link should have.",
            valid=(0, 100_000),
        ),
        state("state", ("active", "retired"), "Retired: no longer expected.", required=True),
        text("version", "Digest of the file this version came from.", required=True, max_length=64),
        text(
            "loop",
            "The coolant loop that cools a rack or a coolant distribution unit, or feeds a loop.",
            max_length=255,
        ),
        state(
            "loop_kind",
            ("fws", "tcs", "rack"),
            "Facility water, technology coolant, or the manifold of one rack.",
        ),
        text(
            "coolant", "What flows in a loop: `water`, or glycol and its share, as in `pg25`.", max_length=32
        ),
        gauge(
            "rated_flow_liters_per_minute", "float32", "Flow that a loop is made for.", valid=(0, 1_000_000)
        ),
        gauge("rail", "int16", "Rail of a NIC, a leaf or a link.", valid=(0, 1_000)),
        text(
            "leaf",
            "The leaf switch at the other end of a NIC's cable, or at an end of a link.",
            max_length=255,
        ),
        gauge("port", "int16", "Port of its device, for a NIC.", valid=(1, 1_000)),
        text("address", "IP address of a NIC, where probes find it.", max_length=64),
        gauge("width", "int16", "Lanes that a NIC or a link should have.", valid=(1, 64)),
        text("child", "The lower end of a link: a NIC, or a leaf.", max_length=255),
        text("child_port", "The port there, for a leaf.", max_length=64),
        text("parent_port", "The port at the upper end of a link.", max_length=64),
        state(
            "confidential",
            ("none", "snp", "nitro"),
            "How a host proves what runs on it; null where the map does not say.",
        ),
        text("policy", "Name of the policy its evidence must meet.", max_length=255),
        text(
            "trust_roots", "Names of the roots it may be trusted by, separated by spaces.", max_length=4_096
        ),
        text("fingerprint", "SHA-256 of a trust root's certificate, hexadecimal.", max_length=64),
        flag("synthetic_only", "A root that vouches for the twin's rows alone."),
    ],
)

JOB_STATES = (
    "running",
    "suspended",
    "completing",
    "completed",
    "failed",
    "cancelled",
    "timeout",
    "node_failed",
    "out_of_memory",
    "preempted",
    "ended",
)
"""Ended: no longer in the scheduler's list, and it was not seen how it ended."""

JOBS = Stream(
    name="jobs",
    family="topology",
    version=1,
    key="job",
    partitions=1,
    interval=None,
    rows_per_second=1,
    doc="One row per version of a job's part on one host: only what changed since the version before.",
    sort_by=("job", "ts"),
    sparse=True,
    columns=[
        *HALL,
        text(
            "job",
            "Identity as the scheduler shows it: `4711`, `4711_3` in an array, `4711+1` in a heterogeneous job.",
            required=True,
            max_length=64,
        ),
        gauge(
            "part", "int32", "Tells apart the parts that one job has on one host; mostly 0.", required=True
        ),
        state("state", JOB_STATES, "What became of it.", required=True),
        text("role", "What its processes do: `train`, `inference`, a pipeline stage.", max_length=64),
        gauge("first_rank", "int32", "First rank on this host.", valid=(0, 10_000_000)),
        gauge("last_rank", "int32", "Last rank on this host.", valid=(0, 10_000_000)),
        gauge(
            "gpus", "int16", "How many GPUs of this host it has; null where nobody says.", valid=(0, 1_000)
        ),
        text("gpu_indexes", "Which ones, by their index on the host: `0-3,6`.", max_length=255),
        time("start_ts", "When it began."),
        time("end_ts", "When it ended; null while it has not."),
        time("limit_ts", "When the scheduler will end it."),
        text("name", "Name its owner gave it.", max_length=255),
        text("user", "Who owns it.", max_length=255),
        text("account", "Who pays for it.", max_length=255),
        text("partition", "The queue it came from.", max_length=255),
        gauge("restarts", "int32", "How often it was started again.", valid=(0, 1_000_000)),
    ],
)

EFFECTS = {
    "reboot": "a host restarts",
    "host_down": "a host is off, or does not answer",
    "telemetry_gap": "collectors read nothing for a while",
    "gpu_reset": "a GPU is reset, or its driver loaded again",
    "gpu_missing": "a GPU is taken out",
    "link_down": "a link goes down, or up again",
    "link_errors": "a link makes errors while it is worked on",
    "latency": "paths are slower than they were",
    "cable_moved": "a cable ends where the map does not say",
    "coolant_flow": "flow, pressure or a pump's speed leaves its band",
    "coolant_temperature": "a loop, or what it cools, becomes warmer or colder",
    "leak_test": "a leak detector is made to speak",
    "power_off": "a feed or a meter shows no power",
    "power_cap": "devices are held below their power",
    "firmware_change": "a device reports another version",
    "attestation_missing": "evidence does not come",
    "measurement_change": "evidence shows other measurements than the policy's",
}
"""What announced work may do, and in words. Debug mode and an unknown root are not among them: no work needs them."""

SCOPES = ("hall", "row", "rack", "cdu", "loop", "leaf", "rail", "host", "asset")
"""What a window may be limited to: a column of the view `place`, or one asset."""

MAINTENANCE = Stream(
    name="maintenance",
    family="topology",
    version=1,
    key="window_id",
    partitions=1,
    interval=None,
    rows_per_second=1,
    doc="One row per announcement of work, place and expected effect; the newest of a window counts.",
    sort_by=("window_id", "ts"),
    sparse=True,
    columns=[
        *HALL,
        text("window_id", "Identity of the window.", required=True, max_length=64),
        state(
            "action",
            ("planned", "started", "ended"),
            "Planned: it opens by itself at `start_ts`. Every window closes by itself at `end_ts`.",
            required=True,
        ),
        time("start_ts", "When it opens.", required=True),
        time("end_ts", "When it closes.", required=True),
        state("scope_kind", SCOPES, "Where: a column of `place`, or one asset.", required=True),
        text("scope", "Its value.", required=True, max_length=255),
        state("effect", tuple(EFFECTS), "What is expected there.", required=True),
        text("reason", "Why, in the words of whoever announced it.", max_length=4_096),
        text("announced_by", "Who that was, as the machine knew them.", max_length=255),
    ],
)

STREAMS = (INVENTORY, JOBS, MAINTENANCE)
