"""From the bus to people: rules, the engine and its journal, incidents and notifiers.
Imports contract only; every other package is a stranger."""
