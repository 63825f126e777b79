"""Reading Prometheus text as devices print it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import CollectError
from ingest.gpu.exposition import PageLimits, PageReader, distinct


def read(page: bytes | str, **options):
    content = page.encode() if isinstance(page, str) else page
    return PageReader().read(content, **options)


@pytest.mark.parametrize(
    ("line", "family", "labels", "value"),
    [
        ('a{b="c"} 1', "a", {"b": "c"}, 1),
        ("a 1", "a", {}, 1),
        ("a{} 1", "a", {}, 1),
        ('a{b="c", d="e"} 1', "a", {"b": "c", "d": "e"}, 1),
        ('a { b = "c" , d="e", } 1', "a", {"b": "c", "d": "e"}, 1),
        ('  a{b="c"}1  ', "a", {"b": "c"}, 1),
        ('a{b="c"}\t1', "a", {"b": "c"}, 1),
        ('a{b="c"} 1 1395066363000', "a", {"b": "c"}, 1),
        ("a\t7", "a", {}, 7),
        ('a{b="c"} 2.776148269e+09', "a", {"b": "c"}, 2_776_148_269),
        ('a{b="c"} -3', "a", {"b": "c"}, -3),
        ('a{b="c"} -1.5', "a", {"b": "c"}, -1.5),
        ('a{b="c"} +Inf', "a", {"b": "c"}, math.inf),
        ('a{b="c"} -Inf', "a", {"b": "c"}, -math.inf),
        ('a{b="x{y}z"} 1', "a", {"b": "x{y}z"}, 1),
        (r'a{b="q\"u\\o\nte\t"} 1', "a", {"b": 'q"u\\o\ntet'}, 1),
        ('a{b=""} 1', "a", {"b": ""}, 1),
        ('a{b="c",b="c"} 1', "a", {"b": "c"}, 1),
        ('a:b{_c="°"} 1', "a:b", {"_c": "°"}, 1),
        ('a{b="c"} 9007199254740993', "a", {"b": "c"}, 9_007_199_254_740_993),
        ('a{b="c"} 1\r', "a", {"b": "c"}, 1),
    ],
)
def test_a_line_of_any_accepted_form_is_a_sample(line, family, labels, value):
    exposition = read(line + "\n")
    (sample,) = exposition.samples
    assert (sample.family, sample.labels.values, sample.value) == (family, labels, value)
    assert not exposition.rejected


def test_a_whole_number_stays_exact_and_not_a_number_stays_that():
    assert isinstance(read("a 9007199254740993\n").samples[0].value, int)
    assert math.isnan(read("a NaN\n").samples[0].value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('a{gpu="0",...,b="c",...} 32', "bad_labels"),
        ('a{b="c"', "bad_labels"),
        ('a{b="c} 1', "bad_labels"),
        ("a{b=c} 1", "bad_labels"),
        ('a{b="c"d="e"} 1', "bad_labels"),
        ('a{,b="c"} 1', "bad_labels"),
        ('a{1b="c"} 1', "bad_labels"),
        ("a}{ 1", "bad_labels"),
        ('a{b="c"}} 1', "bad_labels"),
        ('a{b="c"} 1 # {trace="x"} 2', "bad_labels"),
        ('a{b="c"} 123a{b="d"} 4', "bad_labels"),
        ('a{b="c",b="d"} 1', "duplicate_label"),
        ('a{b="c"}', "no_value"),
        ('a{b="c"} ', "no_value"),
        ("a", "no_value"),
        ('a{b="c"} one', "bad_value"),
        ('a{b="c"} 1_000', "bad_value"),
        ('a{b="c"} --1', "bad_value"),
        ('a{b="c"} -', "bad_value"),
        ('a{b="c"} \N{ARABIC-INDIC DIGIT ONE}', "bad_value"),
        ('a{b="c"} 0x1F', "bad_value"),
        ('a{b="c"} 1 2 3', "bad_value"),
        ('a{b="c"} 1 then', "bad_value"),
        ('a{b="c"} ' + "1" * 65, "bad_value"),
        ("1a 1", "bad_name"),
        ('{b="c"} 1', "bad_name"),
        ("<html> hello", "bad_name"),
        ("a" * 65_537, "line_too_long"),
        ("a{" + ",".join(f'l{i}="x"' for i in range(65)) + "} 1", "too_many_labels"),
    ],
)
def test_a_line_that_is_no_sample_is_counted_and_costs_only_itself(line, reason):
    exposition = read(f"before 1\n{line}\nafter 2\n")
    assert [sample.family for sample in exposition.samples] == ["before", "after"]
    assert exposition.rejected == {reason: 1}


@pytest.mark.parametrize(
    "line",
    ["# HELP a", "# HELP a GPU temperature (in °C).", "# TYPE a gauge", "# NOTE not real", "#", "  # x", ""],
)
def test_comments_and_empty_lines_are_nothing(line):
    exposition = read(f"{line}\na 1\n")
    assert len(exposition.samples) == 1
    assert not exposition.rejected


def test_bytes_that_are_not_utf8_cost_nothing_but_themselves():
    exposition = read(b'# HELP a in \xb0C\na{b="\xff",c="d"} 1\n')
    (sample,) = exposition.samples
    assert sample.labels.values == {"b": "\N{REPLACEMENT CHARACTER}", "c": "d"}


def test_a_last_line_without_its_end_counts_only_where_the_page_is_known_to_be_whole():
    page = "a 30\nb 3"
    assert [sample.family for sample in read(page).samples] == ["a", "b"]
    cut = read(page, whole=False)
    assert [sample.family for sample in cut.samples] == ["a"]
    assert cut.rejected == {"truncated_line": 1}
    assert not read("a 30\n", whole=False).rejected


def test_a_family_of_texts_keeps_its_text():
    reader = PageReader(texts=frozenset({"version"}))
    sample, other = reader.read(b'version{gpu="0"} 580.105.08\nother 1\n').samples
    assert sample.text == "580.105.08"
    assert math.isnan(sample.value)
    assert other.value == 1


def test_equal_labels_are_one_object_in_whatever_order_and_page():
    reader = PageReader()
    first, second = reader.read(b'a{b="1",c="2"} 1\na{c="2", b="1"} 2\n').samples
    (third,) = reader.read(b'a{b="1",c="2"} 3\n').samples
    assert first.labels is second.labels is third.labels


def test_a_page_above_the_limit_is_an_error_and_lines_above_it_are_counted():
    limits = PageLimits(max_bytes=100, max_lines=3)
    with pytest.raises(CollectError) as raised:
        PageReader(limits).read(b"a" * 101)
    assert raised.value.reason == "too_large"
    for page in (b"a 1\nb 2\n# c\nd 4\ne 5\n", b"a 1\nb 2\n# c\nd 4\ne 5"):
        exposition = PageReader(limits).read(page)
        assert len(exposition.samples) == 2
        assert exposition.rejected == {"too_many_lines": 2}


def test_of_a_series_with_two_values_neither_is_kept_and_of_a_repeated_one_one_is():
    page = 'a{b="1"} 5\na{b="2"} 6\na{b="1"} 7\na{b="1"} 7\nc 1\nc 1\nd NaN\nd NaN\n'
    samples, dropped = distinct(read(page).samples)
    assert [(sample.family, sample.labels.values) for sample in samples] == [
        ("a", {"b": "2"}),
        ("c", {}),
        ("d", {}),
    ]
    assert dropped == {"duplicate_series": 3, "repeated_series": 2}


REASONS = {
    "line_too_long",
    "bad_name",
    "bad_labels",
    "duplicate_label",
    "too_many_labels",
    "no_value",
    "bad_value",
    "truncated_line",
    "too_many_lines",
}

ALPHABET = 'aD_{}=",\\ \t\r\n#0123456789.eE+-NaInf\N{DEGREE SIGN}\x00\x0b\N{LINE SEPARATOR}'


@given(st.binary(max_size=2_000) | st.text(ALPHABET, max_size=2_000).map(str.encode), st.booleans())
def test_no_bytes_make_the_reader_fail(page, whole):
    exposition = PageReader().read(page, whole=whole)
    lines = [line for line in page.decode("utf-8", "replace").split("\n") if line.strip()]
    assert len(exposition.samples) + exposition.rejected.total() <= len(lines)
    assert set(exposition.rejected) <= REASONS


LABEL_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), LABEL_TEXT, max_size=6),
    st.integers(),
)
def test_what_is_written_by_the_book_is_read_back(labels, number):
    escaped = {k: v.replace("\\", r"\\").replace('"', r"\"") for k, v in labels.items()}
    inner = ",".join(f'{name}="{value}"' for name, value in escaped.items())
    (sample,) = read(f"metric{{{inner}}} {number}\n").samples
    assert sample.labels.values == labels
    assert sample.value == pytest.approx(number)


@pytest.mark.parametrize(
    "unit",
    [
        b'a{b="',
        b'a{b="\\',
        b'a{b="\\"',
        b"a{ ",
        b"a{b=",
        b"{}",
        b'a{b="c",',
        b"\x00",
        b" ",
        b"\xff",
        b"a 1 ",
        b"a\n",
        b"\n",
        b"a 1\n",
        b'a{b="c"} 1\n',
    ],
)
def test_ten_megabytes_of_anything_are_read_within_the_limits(unit):
    """Quadratic time would not end here; unbounded samples would not fit."""
    page = unit * (10_000_000 // len(unit))
    exposition = PageReader().read(page)
    assert len(exposition.samples) <= PageLimits().max_lines
    assert set(exposition.rejected) <= REASONS


def test_labels_that_never_repeat_do_not_pile_up_in_the_reader():
    reader = PageReader()
    for page in range(4):
        reader.read("".join(f'a{{b="{page}-{i}"}} 1\n' for i in range(10_000)).encode())
    assert len(reader._by_content) <= 20_000
    assert len(reader._by_text) <= 10_000
