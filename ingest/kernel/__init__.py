"""What a kernel says in its log, read as events of GPUs, switches and network cards.
Imports contract and ingest's own modules."""
