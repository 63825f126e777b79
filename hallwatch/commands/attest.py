"""`hallwatch attest`: judge evidence by hand, and say in words what held and what did not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from contract.errors import CollectError, ConfigError
from hallwatch.commands.options import format_option

if TYPE_CHECKING:
    from rich.console import Console

    from ingest.attestation.evidence import Evidence
    from ingest.attestation.finding import Finding
    from ingest.attestation.steps import Done, Setting, Verification

_AUTO = "auto"
_MOST_NAMES = 4

_VERDICTS = {
    "genuine": "all that vouches for it holds",
    "forged": "it claims a product that is known here, and does not verify",
    "unknown": "nothing vouches for it at that time, and nothing refutes it",
}
_POLICIES = {
    "met": "it is as the policy asks",
    "violated": "it is not as the policy asks",
    "none": "not judged: only what is genuine can meet a policy",
}
_AVAILABILITIES = {
    "checked": "all that the checks need was there",
    "could_not_check": "something that the checks need was missing",
}
_OUTCOMES = {
    "held": ("held", "green"),
    "failed": ("FAILED", "bold red"),
    "could_not_check": ("MISSING", "bold yellow"),
    "skipped": ("skipped", "dim"),
}
_LABELS = {
    "product": "product",
    "signer": "signed with",
    "measurement": "measurement",
    "host_data": "host data",
    "debug": "debug mode",
}


@click.group()
def attest() -> None:
    """Judge evidence that a machine is what it claims."""


@attest.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--kind", default=_AUTO, show_default=True, help="What kind of evidence it is, like `nitro`.")
@click.option(
    "--at",
    default="now",
    show_default=True,
    metavar="TIME",
    help="The time to judge at: `now`, `evidence` (its own word), or like 2022-10-13T09:00:00Z.",
)
@click.option(
    "--policy",
    "policy_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What is allowed, a YAML file; otherwise the baseline that is shipped.",
)
@click.option(
    "--collateral",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Certificates, revocation lists and endorsements: files or folders. Otherwise what lies beside the file.",
)
@click.option(
    "--roots",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of other roots than the vendors', like the twin's.",
)
@format_option(("text", "json"), "json: one object with everything.")
def verify(
    file: Path,
    kind: str,
    at: str,
    policy_path: Path | None,
    collateral: tuple[Path, ...],
    roots: Path | None,
    output_format: str,
) -> None:
    """Judge one piece of evidence; `-` is standard input.

    \b
    hallwatch attest verify document.cbor --at evidence
    hallwatch attest verify report.bin --collateral vcek.der --policy ours.yaml
    hallwatch attest verify - --kind snp --format json < report.hex

    Nothing is sent anywhere and nothing is fetched: what a check needs must be here. Evidence is binary, hexadecimal,
    base64, or a parcel: {"evidence": base64, "attached": {name: base64}}.

    Exit code 0: it is genuine and meets the policy. 1: it is not, does not, or could not be checked; the answer says
    which. 2: there was nothing to judge.
    """  # noqa: D301 - click must see the character
    from ingest.attestation.steps import VERIFIERS

    evidence = _read(file, list(collateral))
    kind = _kind(evidence, kind)
    verifier = VERIFIERS.all()[kind]
    setting = _setting(_time_us(at, verifier.time_us(evidence)), policy_path, roots)
    result = verifier.verify(evidence, setting)
    if output_format == "json":
        _print_json(evidence, result)
    else:
        _print(evidence, result, "with" if collateral else "beside it", roots)
    if (result.verdict, result.policy, result.availability) != ("genuine", "met", "checked"):
        raise click.exceptions.Exit(1)


def _read(file: Path, collateral: list[Path]) -> Evidence:
    from ingest.attestation.collateral import find_beside, read_attached
    from ingest.attestation.evidence import MAX_EVIDENCE_BYTES, read_evidence

    is_stream = str(file) == "-"
    try:
        if is_stream:
            body = sys.stdin.buffer.read(MAX_EVIDENCE_BYTES + 1)
        else:
            with file.open("rb") as opened:
                body = opened.read(MAX_EVIDENCE_BYTES + 1)
    except OSError as error:
        raise ConfigError("unreadable", f"{file}: {error.strerror}") from error
    if not body:
        raise ConfigError("invalid", f"{file}: empty")
    beside = [] if is_stream else find_beside(file)
    attached = read_attached(collateral or beside)
    try:
        return read_evidence(body, file.name, attached)
    except CollectError as error:
        raise ConfigError("invalid", f"{file}: {error}") from error


def _kind(evidence: Evidence, kind: str) -> str:
    from ingest.attestation.steps import VERIFIERS, detect

    known = ", ".join(VERIFIERS.all())
    if kind == _AUTO:
        found = evidence.kind if evidence.kind in VERIFIERS.all() else detect(evidence)
        if found is None:
            raise ConfigError(
                "invalid",
                f"{evidence.name}: no evidence of a kind that is known here ({known}); "
                "if you know that it is one, name it with --kind",
            )
        return found
    if kind not in VERIFIERS.all():
        raise click.BadParameter(f"there is no kind {kind!r}; there are {known}", param_hint="--kind")
    return kind


def _time_us(at: str, own_us: int | None) -> int:
    from contract.clock import SystemClock

    if at == "now":
        return SystemClock().now_us()
    if at == "evidence":
        if own_us is None:
            raise click.BadParameter(
                "this evidence does not say when it was made; give the time when it was taken",
                param_hint="--at",
            )
        return own_us
    try:
        time = datetime.fromisoformat(at)
        return round(time.replace(tzinfo=time.tzinfo or UTC).timestamp() * 1_000_000)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{at!r} is no time; write one like 2022-10-13T09:00:00Z, or `evidence`, or `now`",
            param_hint="--at",
        ) from error


def _setting(at_us: int, policy: Path | None, roots: Path | None) -> Setting:
    from ingest.attestation.policy import baseline, read_policy
    from ingest.attestation.roots import shipped_roots, with_twin_roots
    from ingest.attestation.steps import Setting

    return Setting(
        at_us=at_us,
        roots=with_twin_roots(roots, synthetic=True) if roots else shipped_roots(),
        policy=read_policy(policy) if policy else baseline(),
    )


def _print(evidence: Evidence, result: Verification, attached: str, roots: Path | None) -> None:
    from hallwatch.terminal import open_console, say

    console = open_console()
    facts = list(_facts(evidence, result, attached, roots))
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        say(console, f"{name:<{width}}  {value}")
    say(console, "\nChecked")
    for step in result.steps:
        _print_step(console, step)
    say(console, "")
    good = (result.verdict, result.policy, result.availability) == ("genuine", "met", "checked")
    style = "bold green" if good else "bold red"
    for title, word, meanings in (
        ("verdict", result.verdict, _VERDICTS),
        ("policy", result.policy, _POLICIES),
        ("availability", result.availability, _AVAILABILITIES),
    ):
        say(console, f"{title:<12}  {word}: {meanings[word]}", style)
    for advice in _advice(result):
        say(console, f"\n{advice}")


def _facts(
    evidence: Evidence, result: Verification, attached: str, roots: Path | None
) -> Iterator[tuple[str, str]]:
    yield "evidence", f"{evidence.name}, {result.kind}, {len(evidence.body)} bytes"
    signed = "" if result.digest == result.evidence_digest else " of what is signed"
    yield "SHA-256", f"{result.digest}{signed}"
    if names := list(evidence.attached):
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        yield attached, ", ".join(names[:_MOST_NAMES]) + more
    if result.device_id:
        yield "device", result.device_id
    for name, label in _LABELS.items():
        value = result.facts.get(name)
        if value is not None:
            yield label, ("no", "yes")[value] if isinstance(value, bool) else str(value)
    if result.evidence_us is not None:
        yield "made", f"{_shown(result.evidence_us)}, as it says"
    if result.signer_not_after_us is not None:
        yield "signer until", _shown(result.signer_not_after_us)
    yield "judged at", _shown(result.evaluated_us)
    if result.judged_by is not None:
        yield "policy", result.judged_by.name
    if roots is not None:
        yield "roots", f"{roots}: not the vendors'"


def _print_step(console: Console, step: Done) -> None:
    from hallwatch.terminal import say

    word, style = _OUTCOMES[step.outcome.value]
    why = f" ({step.why})" if step.why else ""
    say(console, f"  {word:<8} {step.words}{why}", "" if word == "held" else style)
    for finding in step.findings:
        for line in _finding(finding):
            say(console, f"  {'':<8} {line}")


def _finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity}, {finding.code}: {finding.words}"
    for name, value in (("expected", finding.expected), ("got", finding.got)):
        if value:
            yield f"  {name:<8} {value}"


def _advice(result: Verification) -> Iterator[str]:
    if result.availability == "could_not_check":
        yield "Name the files that are missing with --collateral, or put them beside the evidence."
    if any(code.endswith("signer_expired") for code in result.codes) and result.verdict == "unknown":
        yield "It may have been genuine when it was made: --at judges it at another time."


def _shown(us: int) -> str:
    try:
        return f"{datetime.fromtimestamp(us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{us} microseconds after 1970"


def _print_json(evidence: Evidence, result: Verification) -> None:
    import orjson

    document: dict[str, Any] = {
        "file": evidence.name,
        "kind": result.kind,
        "verdict": result.verdict,
        "policy": result.policy,
        "availability": result.availability,
        "device_id": result.device_id,
        "digest": result.digest,
        "evidence_digest": result.evidence_digest,
        "evidence_time": _iso(result.evidence_us),
        "evaluated_at": _iso(result.evaluated_us),
        "signer_not_after": _iso(result.signer_not_after_us),
        "policy_name": result.judged_by.name if result.judged_by else None,
        "policy_digest": result.judged_by.digest if result.judged_by else None,
        "facts": dict(result.facts),
        "findings": [_as_json(one) for one in result.findings],
        "steps": [
            {"step": step.name, "words": step.words, "outcome": step.outcome.value, "why": step.why or None}
            for step in result.steps
        ],
    }
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode())


def _as_json(finding: Finding) -> dict[str, str]:
    names = ("code", "severity", "effect", "words", "expected", "got")
    return {name: str(getattr(finding, name)) for name in names}


def _iso(us: int | None) -> str | None:
    return None if us is None else _shown(us).replace(" UTC", "Z").replace(" ", "T")
