"""From the bus to SQL: the exactly-once sink, the lake, rollups, upkeep, views and the SQL server.
Imports contract only; every other package is a stranger."""
