"""The map of the hall: what is expected to be there, and where it stands."""

from contract.stream import Stream, gauge, state, text
from contract.streams.envelope import HALL

ASSET_KINDS = ("hall", "row", "rack", "cdu", "host", "gpu", "nic")

INVENTORY = Stream(
    name="inventory",
    family="topology",
    version=1,
    key="hall",
    partitions=1,
    interval=None,
    rows_per_second=1,
    doc="One row per version of an asset: only what changed since the version before; removal is a state.",
    sort_by=("asset", "ts"),
    sparse=True,
    columns=[
        *HALL,
        text("hall", "The hall.", required=True, max_length=255),
        text(
            "asset",
            "Identity: a GPU's UUID, `host/nic`, else the name, unique in the hall.",
            required=True,
            max_length=255,
        ),
        state("kind", ASSET_KINDS, "What it is.", required=True),
        text("parent", "The asset it stands in; null for the hall.", max_length=255),
        text("cdu", "The coolant distribution unit that cools it, for a rack.", max_length=255),
        text("model", "Product name.", max_length=255),
        gauge("position", "int16", "Index on its host, for a GPU."),
        text("pci_bus_id", "PCI domain, bus, device and function.", max_length=32),
        text("guid", "Port GUID, for a NIC.", max_length=64),
        gauge("speed_gbps", "int32", "Rated speed, for a NIC.", valid=(0, 100_000)),
        state("state", ("active", "retired"), "Retired: no longer expected.", required=True),
        text("version", "Digest of the file this version came from.", required=True, max_length=64),
    ],
)

STREAMS = (INVENTORY,)
