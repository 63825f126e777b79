"""Collectors of the topology streams: the map of the hall.
Imports contract and ingest's own modules."""
