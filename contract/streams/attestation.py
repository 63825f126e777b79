"""Evidence that a machine is what it claims, and what its verification found."""

from contract.stream import Stream

STREAMS: tuple[Stream, ...] = ()
