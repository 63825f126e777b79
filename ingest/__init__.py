"""From devices to the bus: collectors by family, the runner and the spool.
Imports contract only; every other package is a stranger."""
