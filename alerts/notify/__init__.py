"""The notifiers, one file each, found by a scan of this folder.
May import alerts.notifier and contract; no notifier imports another."""

from alerts.notifier import build_notifiers

__all__ = ["build_notifiers"]
