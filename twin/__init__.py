"""The data-hall twin: physics, devices, faults and the labels that say what was true. It knows no rule.
May import `contract`; shows itself only as real devices do, and as files of a run folder."""
