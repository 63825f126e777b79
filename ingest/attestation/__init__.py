"""Verifiers of attestation evidence, and the collector that takes it in.
Imports contract and ingest, nothing else of ours."""
