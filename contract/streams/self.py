"""hallwatch about itself: its collectors, and the messages it could not read."""

from datetime import timedelta

from contract.stream import Stream, blob, counter, gauge, state, text, time
from contract.streams.envelope import HALL

COLLECTOR_STATUS = Stream(
    name="collector_status",
    family="self",
    version=1,
    key="source",
    partitions=6,
    interval=timedelta(seconds=10),
    rows_per_second=500,
    doc="One row per source per 10 s: how far it got and what went wrong.",
    sort_by=("source", "ts"),
    columns=[
        *HALL,
        text("source", "The source this is about.", required=True, max_length=255),
        text("collector", "Name of the collector.", required=True, max_length=64),
        text("epoch", "Random id of that process start.", required=True, max_length=64),
        state("state", ("starting", "working", "failing", "stopping"), "What it is doing.", required=True),
        text("last_sequences", "JSON object: the last sequence sent, by stream."),
        gauge("spool_depth", "int64", "Events waiting to be sent.", valid=(0, 2**62)),
        counter("polls", "Times the device was asked."),
        counter("polls_failed", "Times it gave no usable answer."),
        counter("rows", "Rows sent."),
        counter("values_rejected", "Values that could not be true and became null."),
        counter("lines_rejected", "Pieces of the answer that could not be read."),
        text("rejections", "JSON object: counts by reason."),
        time("last_success", "When the device last gave an answer."),
        text("last_error_reason", "Reason of the last error.", max_length=64),
        text("last_error", "The last error in words."),
        gauge("poll_seconds", "float64", "How long the last poll took.", valid=(0, 86_400), resolution=0.001),
    ],
)

DEAD_LETTERS = Stream(
    name="dead_letters",
    family="self",
    version=1,
    key="stream",
    partitions=1,
    interval=None,
    rows_per_second=1,
    doc="One row per message that could not become rows, with its bytes.",
    sort_by=("stream", "ts"),
    sparse=True,
    columns=[
        *HALL,
        text("stream", "Stream of the topic it was found on.", required=True, max_length=255),
        text("topic", "That topic.", required=True, max_length=255),
        text("log", "Identity of that topic's log.", required=True, max_length=64),
        gauge("partition", "int32", "Its partition.", required=True),
        gauge("offset", "int64", "Its offset.", required=True),
        text("reason", "Why it was rejected: one of a few words.", required=True, max_length=64),
        text("detail", "Why, in a sentence."),
        text("headers", "Its headers, as JSON."),
        blob("body", "Its bytes."),
    ],
)

STREAMS = (COLLECTOR_STATUS, DEAD_LETTERS)
