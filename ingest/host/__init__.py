"""Collectors of the hosts themselves: processors, memory, PCIe, clocks.
Imports contract and ingest, nothing else of ours."""
