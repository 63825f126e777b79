"""The faults, one small file each: FAULTS names what it strikes.
May import the rig, and nothing of the matrix."""
