"""From devices to the bus: collectors by family, the runner, the spool and the gateway.
Imports contract only; every other package is a stranger."""
