"""What Slurm prints of its jobs, in the shapes of several versions, and short lists of hosts."""

import json
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import CollectError
from contract.streams.topology import JOB_STATES, JOBS
from ingest.topology.hostlist import MAX_NAMES, expand_hosts, expand_numbers, write_numbers
from ingest.topology.slurm import read_jobs

FOLDER = Path(__file__).parents[2] / "fixtures" / "slurm"
START_US = 1_780_272_000_000_000


def read(name):
    found = read_jobs((FOLDER / name).read_bytes(), lambda job: job["partition"])
    assert not found.rejected
    return [{k: v for k, v in row.items() if v is not None} for row in found.rows]


def no_role(_job):
    return None


def of(**job):
    """Read one running job on h1 that says this much more."""
    answer = {"jobs": [{"job_id": 1, "job_state": "RUNNING", "nodes": "h1", **job}]}
    return read_jobs(json.dumps(answer).encode(), no_role)


def test_plain_numbers_and_texts_of_21_08_are_read():
    first = {
        "job": "4711",
        "part": 0,
        "host": "h100-a01-01",
        "state": "running",
        "role": "train-h100",
        "gpus": 8,
        "gpu_indexes": "0-7",
        "start_ts": START_US,
        "limit_ts": START_US + 86_400_000_000,
        "name": "llama",
        "user": "ann",
        "account": "research",
        "partition": "train-h100",
        "restarts": 1,
    }
    second = {**first, "host": "h100-a01-02", "gpus": 4, "gpu_indexes": "0-1,4-5"}
    assert read("squeue-21.08.json") == [first, second]


def test_objects_of_23_02_are_read_and_an_array_task_has_its_own_name():
    task, *cpu = read("squeue-23.02.json")
    assert (task["job"], task["host"], task["state"], task["user"]) == (
        "5000_3",
        "h100-a02-01",
        "completing",
        "1002",
    )
    assert (task["gpus"], task["gpu_indexes"]) == (1, "3")
    assert [(row["host"], row["gpus"], row.get("limit_ts")) for row in cpu] == [
        ("cpu1", 0, None),
        ("cpu3", 0, None),
    ]


def test_lists_of_states_of_24_11_are_read_and_a_heterogeneous_part_has_its_own_name():
    *parts, broken = read("scontrol-24.11.json")
    assert [(row["job"], row["host"], row["gpus"]) for row in parts] == [
        ("6000+1", "h100-a01-03", 8),
        ("6000+1", "h100-b01-01", 8),
        ("6000+1", "h100-b01-02", 8),
    ]
    assert all("limit_ts" not in row and "gpu_indexes" not in row for row in parts)
    assert (broken["state"], broken["end_ts"], broken["gpus"]) == ("node_failed", START_US + 600_000_000, 8)
    assert "limit_ts" not in broken


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_every_row_fits_the_stream(name):
    rows = [{**row, "ts": 0, "synthetic": False} for row in read(name)]
    names = {key for row in rows for key in row}
    _, rejected = JOBS.clean({key: [row.get(key) for row in rows] for key in names})
    assert not rejected


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("RUNNING", "running"),
        (["RUNNING", "COMPLETING"], "completing"),
        (["CANCELLED", "COMPLETING"], "completing"),
        ("CANCELLED by 1001", "cancelled"),
        (["COMPLETED"], "completed"),
        (["FAILED", "SPECIAL_EXIT"], "failed"),
        ("OUT_OF_MEMORY", "out_of_memory"),
        ("preempted", "preempted"),
        (["SUSPENDED"], "suspended"),
        ("TIMEOUT", "timeout"),
    ],
)
def test_a_state_is_one_word_of_ours_whatever_its_flags(said, state):
    [row] = of(job_state=said).rows
    assert row["state"] == state
    assert state in JOB_STATES


@pytest.mark.parametrize("said", ["PENDING", ["PENDING", "REQUEUED"], [], "", None, "SOMETHING_NEW"])
def test_a_job_that_holds_no_host_makes_no_row(said):
    found = of(job_state=said)
    assert (found.rows, found.rejected) == ([], {})


@pytest.mark.parametrize(
    "value",
    [0, None, "soon", -1, 4_294_967_294, {"set": False, "number": 5}, {"infinite": True, "number": 5}],
)
def test_a_time_that_is_not_set_is_none(value):
    [row] = of(start_time=value).rows
    assert row["start_ts"] is None


def test_gpus_that_do_not_divide_evenly_are_unknown_and_not_guessed():
    rows = of(nodes="h[1-2]", gres_detail=[], tres_alloc_str="gres/gpu=3").rows
    assert [row["gpus"] for row in rows] == [None, None]


@pytest.mark.parametrize(
    "job",
    [
        {"nodes": "h[1-"},
        {"nodes": "h[3-1]"},
        {"nodes": "h[0-99999999]"},
        {"nodes": "h 1"},
        {"job_id": None},
        {"job_state": 7},
    ],
)
def test_a_job_that_cannot_be_read_is_counted_and_the_others_are_read(job):
    good = {"job_id": 2, "job_state": "RUNNING", "nodes": "h2"}
    answer = {"jobs": [{"job_id": 1, "job_state": "RUNNING", "nodes": "h1", **job}, good, 7]}
    found = read_jobs(orjson.dumps(answer), no_role)
    assert [row["job"] for row in found.rows] == ["2"]
    assert found.rejected == {"job": 2}


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ({}, "1"),
        ({"array_job_id": {"set": True, "number": 7}, "array_task_id": 3}, "7_3"),
        ({"array_job_id": {"set": False, "infinite": False, "number": 0}, "array_task_id": None}, "1"),
        ({"array_job_id": 7, "array_task_id": "three"}, None),
        ({"array_job_id": 7, "array_task_id": {"set": True, "number": [3]}}, None),
        ({"het_job_id": True, "het_job_offset": 1}, None),
        ({"job_id": "1"}, None),
        ({"job_id": 0}, None),
    ],
)
def test_a_job_that_cannot_be_read_is_named_only_where_its_whole_name_can_be(job, name):
    found = of(nodes="h[1-", **job)
    assert (found.rows, found.unread) == ([], {name})


@pytest.mark.parametrize(
    ("content", "reason", "words"),
    [
        (b"", "unreadable", "not JSON"),
        (b"[1]", "unreadable", "no list `jobs`"),
        (b'{"jobs": {}}', "unreadable", "no list `jobs`"),
        (b"[" * 100_000, "unreadable", "not JSON"),
        (b'{"jobs": [], "errors": [{"description": "controller away"}]}', "bad_status", "controller away"),
        (b'{"jobs": [], "errors": ["no"]}', "bad_status", "no"),
    ],
)
def test_what_is_no_answer_is_an_error_and_never_no_jobs(content, reason, words):
    with pytest.raises(CollectError, match=words) as raised:
        read_jobs(content, no_role)
    assert raised.value.reason == reason


def test_an_answer_that_grows_beyond_measure_is_refused(monkeypatch):
    monkeypatch.setattr("ingest.topology.slurm.MAX_PARTS", 10)
    with pytest.raises(CollectError) as raised:
        of(nodes="h[1-11]")
    assert raised.value.reason == "too_large"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["set", "infinite", "number", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = (
    "job_id",
    "job_state",
    "nodes",
    "start_time",
    "array_job_id",
    "array_task_id",
    "gres_detail",
    "name",
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8))
def test_no_job_makes_anything_but_rows_or_a_count(job):
    answer = {"jobs": [{"job_id": 1, "job_state": "RUNNING", "nodes": "h[1-2]", **job}]}
    found = read_jobs(orjson.dumps(answer), no_role)
    assert len(found.rows) in (0, 1, 2) or isinstance(job["nodes"], str)
    assert found.rejected.total() == len(found.unread) <= 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("h1", ["h1"]),
        ("h[1-3,7]", ["h1", "h2", "h3", "h7"]),
        ("a,b[01-02],c", ["a", "b01", "b02", "c"]),
        ("r[1-2]n[8-10]-x", ["r1n8-x", "r1n9-x", "r1n10-x", "r2n8-x", "r2n9-x", "r2n10-x"]),
        ("h[098-101]", ["h098", "h099", "h100", "h101"]),
        ("", []),
    ],
)
def test_a_short_list_stands_for_its_names_in_order(text, names):
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    "text", ["h[", "h]", "h[1-2", "h[]", "h[a]", "h[2-1]", ",", "a,,b", "a, b", "h[1-2],", "a@b"]
)
def test_what_is_no_list_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        expand_hosts(text)


@pytest.mark.parametrize(
    "text",
    ["h[0-999999999]", "h[0-999][0-999]", "[0-19999]" * 20_000, "h[1-15000],g[1-15000]", "x" * 300_000],
)
def test_a_small_text_never_becomes_a_large_list(text):
    with pytest.raises(ValueError, match="hosts"):
        expand_hosts(text)
    assert len(expand_hosts(f"h[1-{MAX_NAMES}]")) == MAX_NAMES


@given(st.sets(st.integers(0, 1_000), min_size=1, max_size=60).map(sorted))
def test_numbers_written_short_are_the_same_numbers(numbers):
    assert expand_numbers(write_numbers(numbers)) == numbers


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-99999", "-1", "1-"])
def test_what_are_no_numbers_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        expand_numbers(text)
