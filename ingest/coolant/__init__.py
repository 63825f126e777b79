"""Collectors of coolant units, loops and leak detectors.
Imports contract and ingest, nothing else of ours."""
