"""The streams, one file per family; each column is declared here and nowhere else.
Imports only contract.stream."""

from contract.stream import Stream
from contract.streams import alerts, attestation, coolant, fabric, gpu, host, self, topology

STREAMS: dict[str, Stream] = {
    s.name: s
    for family in (gpu, host, fabric, coolant, attestation, topology, alerts, self)
    for s in family.STREAMS
}
"""Every stream by name, in the order of the documentation."""

BY_TOPIC: dict[str, Stream] = {s.topic: s for s in STREAMS.values()}
