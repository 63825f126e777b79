"""The rule kinds, one file each: a model of the rule and its watcher, found by a scan of this folder.
May import the rest of alerts and contract; no kind imports another."""
