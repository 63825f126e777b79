"""One file per command, or per few that belong together.
May import everything."""
