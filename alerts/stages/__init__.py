"""The stages between a transition and the people told about it, one file each.
May import the rest of alerts and contract; no stage imports another."""
