"""One condition of a rule: a DuckDB scalar expression, checked before it ever meets a row.

What passes is a pure function of one row: the stream's columns, `_received`, constants, operators and functions
that always answer alike. The text that runs is printed back from the checked syntax tree, so nothing can hide
between the two.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from contract.stream import TIME_TYPE, Stream
from contract.streams import STREAMS

RECEIVED = "_received"
"""When the bus appended the message: the one column that readers add and a rule may ask."""

MAX_TEXT = 4_096

_CLASSES = frozenset(
    {
        "COLUMN_REF",
        "CONSTANT",
        "COMPARISON",
        "CONJUNCTION",
        "FUNCTION",
        "OPERATOR",
        "CAST",
        "CASE",
        "BETWEEN",
        "TYPE",
    }
)
_REFUSED = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a position",
    "LAMBDA": "a lambda",
    "COLLATE": "a collation",
    "DEFAULT": "DEFAULT",
}
# With one argument it counts from today.
_CLOCKED = frozenset({"age"})
# They make values of any size out of a small row, past DuckDB's own limit of memory.
_UNBOUNDED = frozenset(
    {"array_resize", "bar", "format", "list_resize", "lpad", "printf", "repeat", "rpad", "list_repeat"}
)

Node = dict[str, Any]


class ExpressionError(ValueError):
    """A condition that may not run, and why."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked condition: `text` as its author wrote it, `sql` as it runs."""

    stream: str
    text: str
    sql: str


def sandbox() -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB that reaches nothing outside itself and cannot be told to."""
    connection = duckdb.connect(
        config={
            "threads": "1",
            "memory_limit": "512MB",
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    # One projection has nothing to optimise, and preparing it for each batch would cost more than running it.
    connection.execute("PRAGMA disable_optimizer")
    # Division by zero is then unknown, neither an infinity that compares nor an error.
    for setting in (
        "ieee_floating_point_ops = false",
        "error_on_division_by_zero = false",
        "python_enable_replacements = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return connection


def input_schema(stream: Stream) -> pa.Schema:
    """Return what a condition sees: the stream's columns and `_received`."""
    return stream.schema.append(pa.field(RECEIVED, TIME_TYPE))


class Checker:
    """Checks conditions against empty typed tables, one per stream."""

    def __init__(self) -> None:
        self._connection = sandbox()
        for name, stream in STREAMS.items():
            self._connection.register(name, input_schema(stream).empty_table())
        self._functions = _functions(self._connection)
        self._select = self._serialize("SELECT 1")
        self._finite = self._parse("CASE WHEN isfinite(x) THEN x END")

    def check(self, stream: Stream, text: str) -> Expression:
        """Return the condition ready to run; raise ExpressionError in words for its author."""
        tree = self._parse(text)
        for node in _nodes(tree):
            self._check_node(stream, node)
        self._guard(stream, tree)
        sql = self._print(tree)
        kind = self._type(stream, sql)
        if kind != "BOOLEAN":
            raise ExpressionError(f"gives {kind}, a condition gives true or false")
        self._try(stream, sql)
        return Expression(stream.name, text, sql)

    def _parse(self, text: str) -> Node:
        if len(text) > MAX_TEXT:
            raise ExpressionError(f"longer than {MAX_TEXT} characters")
        answer = self._serialize(f"SELECT (\n{text}\n)")
        if answer["error"]:
            raise ExpressionError(f"not an expression: {answer['error_message']}")
        statements = answer["statements"]
        node = statements[0]["node"] if statements else {}
        alone = len(statements) == 1 and node["type"] == "SELECT_NODE" and len(node["select_list"]) == 1
        plain = alone and node["from_table"]["type"] == "EMPTY" and not node["modifiers"]
        if (
            not plain
            or node["where_clause"]
            or node["group_expressions"]
            or node["having"]
            or node["qualify"]
        ):
            raise ExpressionError("one expression is expected, without SELECT, FROM or a comma")
        tree: Node = node["select_list"][0]
        return tree

    def _print(self, tree: Node) -> str:
        document = copy.deepcopy(self._select)
        document["statements"][0]["node"]["select_list"] = [tree]
        (text,) = self._one("SELECT json_deserialize_sql(?::JSON)", orjson.dumps(document).decode())
        return str(text).removeprefix("SELECT ")

    def _guard(self, stream: Stream, tree: Node) -> None:
        """Make every computed floating value that is compared or cast unknown where it is not finite.

        In SQL NaN is above every number, so without this a NaN would fire `> 80`.
        """
        for node in list(_nodes(tree)):
            for holder, key in _operands(node):
                operand = holder[key]
                if operand["class"] in ("COLUMN_REF", "CONSTANT"):
                    continue
                if self._type(stream, self._print(operand)) in ("FLOAT", "DOUBLE"):
                    holder[key] = self._unless_finite(operand)

    def _unless_finite(self, operand: Node) -> Node:
        guard = copy.deepcopy(self._finite)
        check = guard["case_checks"][0]
        check["when_expr"]["arguments"][0]["expression"] = operand
        check["then_expr"] = copy.deepcopy(operand)
        return guard

    def _type(self, stream: Stream, sql: str) -> str:
        try:
            return str(self._one(f"DESCRIBE SELECT {sql} FROM {stream.name}")[1])
        except duckdb.Error as error:
            raise ExpressionError(_first_line(error)) from error

    def _try(self, stream: Stream, sql: str) -> None:
        try:
            self._connection.execute(f"SELECT TRY({sql}) FROM {stream.name}").fetchall()
        except duckdb.Error as error:
            raise ExpressionError(_first_line(error)) from error

    def _one(self, sql: str, *values: str) -> tuple[Any, ...]:
        row = self._connection.execute(sql, list(values)).fetchone()
        return row if row is not None else ()

    def _serialize(self, query: str) -> Node:
        (text,) = self._one("SELECT json_serialize_sql(?::VARCHAR, skip_null := false)", query)
        document: Node = orjson.loads(text)
        return document

    def _check_node(self, stream: Stream, node: Node) -> None:
        kind = node["class"]
        if kind not in _CLASSES:
            raise ExpressionError(f"{_REFUSED.get(kind, kind)} is not allowed in a condition")
        if kind == "COLUMN_REF":
            names = node["column_names"]
            if names[-1] not in stream.by_name and names[-1] != RECEIVED:
                raise ExpressionError(f"{stream.name} has no column {names[-1]!r}")
            if names[:-1] not in ([], [stream.name]):
                raise ExpressionError(f"{'.'.join(names)}: only {stream.name} can be asked")
        elif kind == "FUNCTION":
            pure = self._functions.get(node["function_name"])
            if node["function_name"] in _UNBOUNDED:
                raise ExpressionError(f"{node['function_name']}() makes values of any size")
            if pure is None:
                raise ExpressionError(f"{node['function_name']}() is no function of one row")
            if not pure:
                raise ExpressionError(f"{node['function_name']}() depends on more than the row")


@cache
def checker() -> Checker:
    """Return the process's checker: it takes 30 ms to make."""
    return Checker()


def _functions(connection: duckdb.DuckDBPyConnection) -> Mapping[str, bool]:
    """Return every scalar function, and whether it answers alike whenever it is asked alike."""
    rows = connection.execute(
        "SELECT function_name, bool_or(stability = 'CONSISTENT') AND NOT bool_or(has_side_effects)"
        " FROM duckdb_functions() WHERE function_type = 'scalar' GROUP BY 1"
    ).fetchall()
    return {name: pure and name not in _CLOCKED for name, pure in rows}


def _nodes(tree: Any) -> Iterator[Node]:
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)


def _operands(node: Node) -> Iterator[tuple[Any, Any]]:
    """Yield where the operands of a comparison or a cast hang: (holder, key)."""
    if node["class"] == "COMPARISON":
        yield from ((node, "left"), (node, "right"))
    elif node["class"] == "BETWEEN":
        yield from ((node, "input"), (node, "lower"), (node, "upper"))
    elif node["class"] == "CAST":
        yield node, "child"
    elif node["type"] in ("COMPARE_IN", "COMPARE_NOT_IN"):
        yield from ((node["children"], at) for at in range(len(node["children"])))


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
