"""What the engine found, and who was told."""

from contract.stream import Stream, gauge, state, text, time
from contract.streams.envelope import HALL

SEVERITIES = ("info", "minor", "major", "critical")

ALERTS = Stream(
    name="alerts",
    family="alerts",
    version=1,
    key="rule",
    partitions=1,
    interval=None,
    rows_per_second=1,
    doc="One row per transition of an alert, numbered and chained: a change or a cut of the history shows.",
    sort_by=("rule", "ts"),
    sparse=True,
    columns=[
        *HALL,
        gauge("chain_index", "int64", "Number of the transition in its chain, without holes.", required=True),
        text("previous_hash", "Hash of the transition before, in hexadecimal.", required=True, max_length=64),
        text(
            "hash",
            "SHA-256 over the previous hash and this transition's canonical form.",
            required=True,
            max_length=64,
        ),
        text("fingerprint", "Identity of the alert: the rule and the entity.", required=True, max_length=64),
        text("rule", "Name of the rule.", required=True, max_length=255),
        text("entity_kind", "Column or asset kind that names the entity.", required=True, max_length=64),
        text("entity", "What the alert is about.", required=True, max_length=512),
        state("transition", ("firing", "ended"), "What the alert changed to.", required=True),
        state(
            "end_reason",
            ("cleared", "superseded", "expired", "operator"),
            "Why it ended; loss of telemetry is none of them.",
        ),
        state("severity", SEVERITIES, "The rule's severity.", required=True),
        text("owner", "Who is to act.", required=True, max_length=255),
        text("runbook", "Page that says how.", max_length=255),
        text("summary", "What a person reads first.", required=True),
        time("began", "When the condition first held.", required=True),
        time("evidence_ts", "Event time of the row that decided."),
        text("evidence", "That row's columns, as JSON."),
        gauge("amends", "int64", "Chain index of the transition that this one corrects."),
        text("rules_digest", "Digest of the rule set that decided.", required=True, max_length=64),
    ],
)

NOTIFICATIONS = Stream(
    name="notifications",
    family="alerts",
    version=1,
    key="notifier",
    partitions=1,
    interval=None,
    rows_per_second=1,
    doc="One row per attempt to tell someone that settled: delivered or given up.",
    sort_by=("notifier", "ts"),
    sparse=True,
    columns=[
        *HALL,
        gauge("outbox_id", "int64", "Number in the engine's outbox.", required=True),
        gauge("chain_index", "int64", "The transition told about.", required=True),
        text("fingerprint", "The alert.", required=True, max_length=64),
        text("notifier", "Who was told.", required=True, max_length=255),
        text(
            "idempotency_key",
            "Equal for every repeat of the same notification.",
            required=True,
            max_length=128,
        ),
        state("outcome", ("delivered", "given_up"), "What became of it.", required=True),
        gauge("attempts", "int32", "How often it was tried.", valid=(1, 1_000_000)),
        text("detail", "What the receiver said last."),
    ],
)

STREAMS = (ALERTS, NOTIFICATIONS)
