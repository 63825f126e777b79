"""Hosts: their processors, memory, PCIe devices, clock and boot."""

from contract.stream import Stream

STREAMS: tuple[Stream, ...] = ()
