"""Recordings of devices, one file per kind: what is in a folder, and playing it as the devices would.
Imports contract and ingest, and nothing else of ours."""
