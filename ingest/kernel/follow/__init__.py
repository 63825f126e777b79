"""Followers of kernel logs: where lines come from, and how a place in a log is found again after a restart.
Imports contract and ingest.kernel."""
