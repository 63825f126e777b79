"""Collectors of the gpu streams: what GPUs and NVSwitches report of themselves.
Imports contract and ingest's own modules."""
