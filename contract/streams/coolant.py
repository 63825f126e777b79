"""Coolant loops and the air and power beside them: readings, and what devices and detectors say."""

from contract.stream import Stream

STREAMS: tuple[Stream, ...] = ()
