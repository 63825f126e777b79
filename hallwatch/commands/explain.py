"""`hallwatch explain`: what a code means, who says so, and where they disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ingest.kernel.codes import MAX_CODE

if TYPE_CHECKING:
    from ingest.kernel.codes import Code
    from ingest.kernel.decode import Decoded

_CLASSES = {
    "application": "the program's doing",
    "hardware": "the device's trouble",
    "link": "an NVLink's trouble",
    "driver": "driver or firmware",
    "security": "concerns the security of what runs there",
    "facility": "the hall's heat or power",
    "information": "tells what goes on, no fault of its own",
    "follower": "follows another code",
    "legacy": "of GPUs older than A100",
    "unknown": "in no table",
}
_ACTIONS = {
    "none": "nothing at once",
    "restart_application": "restart the application",
    "restart_vm": "restart the virtual machine",
    "restart_fabric_manager": "restart the Fabric Manager",
    "drain_p2p": "drain what uses peers, then reset",
    "drain_and_reset": "drain the GPU, then reset it",
    "reset_gpu": "reset the GPU",
    "reset_fabric": "reset the GPUs and switches of the partition",
    "restart_host": "restart the host",
    "check_cooling": "look at the cooling",
    "check_power": "look at the power",
    "check_mechanicals": "look at seating and cables",
    "update_software": "update driver and firmware",
    "follow_recovery_action": "what the Xid 154 beside it says; without one, restart the application",
    "contact_support": "ask the maker",
    "unknown": "not known",
}
_SCOPES = {
    "always_fatal": "always fatal: the whole host",
    "potentially_fatal": "fatal for the port's partition; on a trunk port for every partition that crosses it",
    "nonfatal": "not fatal",
    "host": "of the switch's host interface",
    "unlisted": "in no list of the guide",
}


@click.group()
def explain() -> None:
    """Say what a code means: class, severity, what to do, and where sources disagree."""


@explain.command()
@click.argument("code", type=click.IntRange(1, MAX_CODE))
@click.option("--detail", default="", help="What the line says after the code: it counts more than the code.")
@click.option("--driver", help="Version or branch of the GPU driver, like 575: registers moved between them.")
def xid(code: int, detail: str, driver: str | None) -> None:
    """Explain an Xid of an NVIDIA GPU.

    hallwatch explain xid 149 --detail "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x025525c6 0x0)"
    """
    from ingest.kernel.codes import find_xid
    from ingest.kernel.decode import decode_xid

    _print(find_xid(code), decode_xid(code, detail.strip(), driver))


@explain.command()
@click.argument("code", type=click.IntRange(1, MAX_CODE))
def sxid(code: int) -> None:
    """Explain an SXid of an NVSwitch. Where the line itself says Fatal or Non-fatal, that counts."""
    from ingest.kernel.codes import find_sxid
    from ingest.kernel.decode import Decoded

    _print(find_sxid(code), Decoded())


def _print(code: Code, decoded: Decoded) -> None:
    from hallwatch.terminal import open_console, say

    console = open_console()
    kind = {"xid": "Xid", "sxid": "SXid"}[code.kind]
    say(console, f"{kind} {code.code}: {code.name or 'in no table'}", "bold")
    facts = list(_facts(code, decoded))
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        say(console, f"  {name:<{width}}  {value}")
    for title, entries in (
        ("Where sources disagree", (*decoded.notes, *code.disagreements)),
        ("Sources", code.sources),
    ):
        if entries:
            say(console, f"\n{title}")
            for entry in entries:
                say(console, f"  - {entry}")


def _facts(code: Code, decoded: Decoded) -> Iterator[tuple[str, str]]:
    columns: dict[str, Any] = {**code.columns(), **decoded.columns}
    if code.mnemonic:
        yield "called", code.mnemonic
    yield "class", f"{columns['class']}: {_CLASSES[columns['class']]}"
    yield "severity", str(columns["severity"])
    if code.scope:
        yield "list", _SCOPES[code.scope]
    yield "do", _ACTIONS[columns["action"]]
    follow_up = decoded.follow_up or code.follow_up
    if follow_up and follow_up != "none":
        yield "if it comes again", follow_up
    for name in ("unit", "subcode", "link", "reason"):
        if columns.get(name) is not None:
            yield name, str(columns[name])
    yield "known by", decoded.basis if code.name is not None or decoded.columns else "nobody we know of"
    if code.architectures:
        yield "GPUs", ", ".join(code.architectures)
    if code.recovery_action_from is not None:
        yield "Xid 154", f"comes with it from driver R{code.recovery_action_from} on, and says what to do"
    yield "alert", ", ".join(_alerts(code, columns)) or "none"
    if code.relation:
        yield (
            "order",
            "others follow it" if code.relation == "leader" else "follows another code: look for that",
        )


def _alerts(code: Code, columns: Mapping[str, Any]) -> Iterator[str]:
    """Yield the shipped rules that such an event of the kernel log meets, by asking their own conditions."""
    import duckdb

    from alerts.ruleset import check_rules
    from contract.streams.gpu import GPU_EVENTS

    row = {"event": code.kind, "code": code.code, "evidence": "kernel_log", "occurrences": 1, **columns}
    row |= {"ts": 0, "host": "host", "synthetic": False, "gpu_uuid": "GPU" if code.kind == "xid" else None}
    event = GPU_EVENTS.table({name: [value] for name, value in row.items()})
    with duckdb.connect() as connection:
        connection.register("event", event)
        for rule in check_rules().rules:
            condition = rule.conditions().get("when") if rule.on == GPU_EVENTS.name else None
            if condition and connection.execute(f"SELECT {condition} FROM event").fetchall() == [(True,)]:
                count = getattr(rule, "count", 1)
                again = f", when it comes {count} times" if count > 1 else ""
                yield f"{rule.rule} ({rule.severity}, {rule.owner}{again})"
