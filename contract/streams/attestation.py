"""Evidence that a machine is what it claims, and what its verification found.

Words: RFC 9334 (remote attestation procedures). Three outcomes that are never mixed: whether the evidence is genuine,
whether it meets the policy, and whether all could be checked.
"""

from contract.stream import Column, Stream, blob, flag, gauge, state, text, time
from contract.streams.envelope import HOST

VERDICTS = ("genuine", "forged", "unknown")
POLICY_OUTCOMES = ("met", "violated", "none")
AVAILABILITIES = ("checked", "could_not_check")
FINDING_SEVERITIES = ("critical", "high", "medium", "low", "info")

_DIGEST = 64


def _tcb(part: str, what: str) -> Column:
    return gauge(f"tcb_{part}", "int16", f"Version of {what} in the reported TCB.", valid=(0, 255))


ATTESTATION_RESULTS = Stream(
    name="attestation_results",
    family="attestation",
    version=1,
    key="host",
    partitions=4,
    interval=None,
    rows_per_second=40,
    doc="One row per evaluation of one piece of evidence.",
    sort_by=("host", "ts"),
    sparse=True,
    columns=[
        *HOST,
        text("kind", "What kind of evidence it is.", required=True, max_length=32),
        text("device_id", "Identity that the evidence claims: a chip id, a module id.", max_length=256),
        text(
            "digest",
            "SHA-256 of the signed part alone, hexadecimal: the same for a replay in another wrapping.",
            required=True,
            max_length=_DIGEST,
        ),
        text(
            "evidence_digest",
            "SHA-256 of all that was handed in: the key of the archive.",
            max_length=_DIGEST,
        ),
        state(
            "verdict",
            VERDICTS,
            "Forged: claims a supported product and does not verify. Unknown: nothing vouches for it, nothing refutes it.",
            required=True,
        ),
        state("policy", POLICY_OUTCOMES, "None: no policy, or nothing genuine to judge.", required=True),
        state("availability", AVAILABILITIES, "Whether all that the checks need was there.", required=True),
        state("severity", FINDING_SEVERITIES, "Severity of the worst finding; null where there is none."),
        text("finding_codes", "Codes of the findings, sorted, with a space around each.", max_length=4096),
        text("findings", "The findings as JSON: code, severity, expected, got."),
        text("steps", "What was checked, as JSON: step and outcome, in order."),
        text("product", "Product that signs, like `Milan`.", max_length=64),
        text("signer", "Kind of key that signed, like `vcek`.", max_length=32),
        text("cpu", "Family, model and stepping, hexadecimal.", max_length=32),
        text("measurement", "Measurement of what was started, hexadecimal.", max_length=256),
        text("host_data", "What the host bound to it at the start, hexadecimal.", max_length=256),
        text("report_data", "What the guest bound to it: a nonce, a key; hexadecimal.", max_length=2048),
        flag("debug", "Whether a debugger may look inside."),
        gauge("vmpl", "int16", "Privilege level that asked for the report.", valid=(0, 3)),
        gauge("guest_svn", "int64", "Security version of the guest.", valid=(0, 2**32 - 1)),
        _tcb("bootloader", "the boot loader"),
        _tcb("tee", "the trusted execution environment"),
        _tcb("snp", "the SNP firmware"),
        _tcb("microcode", "the microcode"),
        _tcb("fmc", "the first mutable code"),
        text("claims", "Every other claim of the evidence, as JSON."),
        time("evidence_ts", "When the evidence was made, where that is known."),
        time("evaluated_at", "The time that certificates were judged at.", required=True),
        time("signer_not_after", "When the signer's certificate expires."),
        text("policy_name", "The policy that judged.", max_length=128),
        text("policy_digest", "SHA-256 of its text, hexadecimal.", max_length=_DIGEST),
        gauge("collateral_age_seconds", "int64", "Age of the oldest revocation list used.", valid=(0, 2**40)),
    ],
)

ATTESTATION_EVIDENCE = Stream(
    name="attestation_evidence",
    family="attestation",
    version=1,
    key="host",
    partitions=4,
    interval=None,
    rows_per_second=10,
    doc="Raw evidence, once by digest, to be judged again later. Restricted: it can hold tokens and customers' bytes.",
    sort_by=("host", "ts"),
    sparse=True,
    columns=[
        *HOST,
        text("digest", "SHA-256 of the bytes, hexadecimal.", required=True, max_length=_DIGEST),
        text("kind", "What kind of evidence it was taken for; null where nobody knew it.", max_length=32),
        text("name", "The name it came under.", max_length=255),
        gauge("size_bytes", "int64", "How many bytes it has.", valid=(0, 2**32)),
        blob("evidence", "The bytes."),
    ],
)

STREAMS = (ATTESTATION_RESULTS, ATTESTATION_EVIDENCE)
