"""What a person runs and imports: the command line, the demo and the connection to the lake.
Imports every package and introduces them to each other; none imports it."""
