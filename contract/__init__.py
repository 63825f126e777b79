"""What every part agrees on: streams, codec, bus, configuration, errors, clock, metrics, log.
Imports nothing of ours; every other package may import it."""
