"""What can be changed in a large hall, a file per family: by name, the one quantity that a fault or a piece of work moves.
Imports the rest of twin; a handle writes no event, for what devices and collectors then tell follows from the hall."""

from collections.abc import Mapping

from twin.handles import collectors, cooling, gpus, hosts, network, work
from twin.handles.handle import Handle

HANDLES: Mapping[str, Handle] = {
    handle.name: handle
    for family in (cooling, network, gpus, hosts, collectors, work)
    for handle in family.HANDLES
}
"""Every handle by its name."""
