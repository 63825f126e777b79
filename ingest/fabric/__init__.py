"""Collectors of the network: the counters of its ports, and probes of its latency.
Imports contract and ingest, nothing else of ours."""
