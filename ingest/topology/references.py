"""What one part of the map says of another: that it is there, and that the two agree."""

from __future__ import annotations

from collections.abc import Mapping

from contract.yamltext import Document, Place
from ingest.topology.assets import LONGEST_CHAIN, drivers_of, hosts_of
from ingest.topology.entries import HallEntry, HostEntry, RackEntry

_SECTIONS = {
    "cdu": ("CDU", "cdus"),
    "loop": ("loop", "loops"),
    "leaf": ("leaf", "leaves"),
    "spine": ("spine", "spines"),
    "trust_root": ("trust root", "trust_roots"),
}
"""Kind -> what it is called, and the part of the file that lists it."""

_NO_PLACE = ("detector", "meter", "link", "trust_root", "rail")
"""Nothing is at these."""


def check_references(entry: HallEntry, document: Document, kinds: Mapping[str, str]) -> None:
    """Complain of names that are not there or of the wrong kind, and of statements that contradict each other.

    `kinds` has the kind of everything in the file by its name.
    """
    checker = _Checker(entry, document, kinds)
    checker.coolant()
    checker.standing()
    checker.hosts()


class _Checker:
    def __init__(self, entry: HallEntry, document: Document, kinds: Mapping[str, str]) -> None:
        self._entry = entry
        self._complain = document.complain
        self._kinds = kinds
        self._loops = {loop.loop: loop for loop in entry.loops}
        self._drivers = drivers_of(entry)
        self._listed: dict[str, str] = {}

    def coolant(self) -> None:
        for n, loop in enumerate(self._entry.loops):
            place: Place = ("loops", n)
            self._there((*place, "cdu"), loop.cdu, "cdu")
            if self._there((*place, "fed_by"), loop.fed_by, "loop"):
                self._no_circle((*place, "fed_by"), loop.loop)
            if loop.cdu is not None and loop.fed_by is not None:
                self._complain(
                    (*place, "fed_by"), "beside `cdu`: a loop is driven by the one or fed by the other"
                )
            if loop.kind == "fws" and loop.cdu is not None:
                self._complain((*place, "cdu"), "a loop of facility water is driven by no CDU of the hall")
        for c, cdu in enumerate(self._entry.cdus):
            if (
                self._there(("cdus", c, "loop"), cdu.loop, "loop")
                and self._loops[cdu.loop or ""].kind != "fws"
            ):
                self._complain(
                    ("cdus", c, "loop"),
                    f"{cdu.loop!r} is no loop of kind fws; the loops that a CDU drives name it with `cdu`",
                )

    def standing(self) -> None:
        for section in ("cdus", "leaves", "spines"):
            for n, one in enumerate(getattr(self._entry, section)):
                if one.at is not None and self._kinds.get(one.at) not in ("row", "rack"):
                    self._complain((section, n, "at"), f"there is no row or rack {one.at!r}")
        for section in ("detectors", "meters"):
            for n, one in enumerate(getattr(self._entry, section)):
                if self._kinds.get(one.at, _NO_PLACE[0]) in _NO_PLACE:
                    self._complain((section, n, "at"), f"there is nothing named {one.at!r} where it could be")
        for n, leaf in enumerate(self._entry.leaves):
            for u, uplink in enumerate(leaf.uplinks):
                self._there(("leaves", n, "uplinks", u, "spine"), uplink.spine, "spine")

    def hosts(self) -> None:
        for r, row in enumerate(self._entry.rows):
            for k, rack in enumerate(row.racks):
                self._rack(rack, ("rows", r, "racks", k))
        rails = {leaf.leaf: leaf.rail for leaf in self._entry.leaves}
        for place, host in hosts_of(self._entry):
            self._trust(host, place)
            for n, nic in enumerate(host.nics):
                self._there((*place, "nics", n, "leaf"), nic.leaf, "leaf")
                if nic.leaf is None and nic.leaf_port is not None:
                    self._complain((*place, "nics", n, "leaf_port"), "without `leaf`: of which switch?")
                rail = rails.get(nic.leaf or "")
                if nic.rail is not None and rail is not None and nic.rail != rail:
                    self._complain(
                        (*place, "nics", n, "rail"), f"rail {nic.rail}, but {nic.leaf} is of rail {rail}"
                    )

    def _rack(self, rack: RackEntry, place: Place) -> None:
        self._there((*place, "cdu"), rack.cdu, "cdu")
        self._there((*place, "loop"), rack.loop, "loop")
        driver = self._drivers.get(rack.loop or "")
        if rack.cdu is not None and driver is not None and rack.cdu != driver:
            self._complain((*place, "cdu"), f"{rack.cdu!r}, but its loop {rack.loop} is driven by {driver}")

    def _trust(self, host: HostEntry, place: Place) -> None:
        synthetic_only = {root.root for root in self._entry.trust_roots if root.synthetic_only}
        for n, root in enumerate(host.trust_roots):
            where = (*place, "trust_roots", n)
            if (
                self._there(where, root, "trust_root")
                and root in synthetic_only
                and not self._entry.synthetic
            ):
                self._complain(
                    where, f"{root!r} vouches for the twin's rows alone, and this hall is not synthetic"
                )
        if host.confidential in (None, "none"):
            for key in ("policy", "trust_roots"):
                if getattr(host, key):
                    self._complain((*place, key), "of a host that is not `confidential: snp` or `nitro`")

    def _there(self, place: Place, name: str | None, kind: str) -> bool:
        """Return whether something is named that is there; complain where it is named and not there."""
        if name is None or self._kinds.get(name) == kind:
            return name is not None
        word, section = _SECTIONS[kind]
        if kind not in self._listed:
            known = sorted(other for other, its in self._kinds.items() if its == kind)
            self._listed[kind] = ", ".join(known[:10]) or "none"
        self._complain(place, f"there is no {word} {name!r} in `{section}` ({self._listed[kind]})")
        return False

    def _no_circle(self, place: Place, name: str) -> None:
        path = [name]
        while (loop := self._loops.get(path[-1])) is not None and loop.fed_by is not None:
            path.append(loop.fed_by)
            if loop.fed_by == name:
                self._complain(place, f"goes round in a circle: {' <- '.join(path)}")
                return
            if len(path) > LONGEST_CHAIN:
                self._complain(place, f"more than {LONGEST_CHAIN} loops in a row, or a circle")
                return
