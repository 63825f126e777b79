"""What people write in files: into a strict model, with the line of every mistake."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from contract.yamltext import Document, as_text

_Entry = TypeVar("_Entry", bound=BaseModel)


def read_entry(model: type[_Entry], content: bytes, where: str, begins: str) -> tuple[_Entry, Document]:
    """Read YAML as a model, every plain value as the text it is; `begins` says what a whole file begins with.

    Raises ConfigError(invalid) that names every mistake as `file:line`. More can be complained of in the document.
    """
    document = Document(where, as_text)
    values = document.load(content)
    if values is None:
        document.complain((), f"empty; {begins}")
    document.stop_if_wrong()
    try:
        return model.model_validate(values), document
    except ValidationError as error:
        for problem in error.errors():
            document.complain(problem["loc"], words(problem["type"], problem["msg"]))
        document.stop_if_wrong()
        raise


def words(type: str, message: str) -> str:
    """Return what pydantic complains of, as a person would say it."""
    if type == "extra_forbidden":
        return "unknown key"
    if type == "missing":
        return "missing"
    if type == "model_type":
        return "a mapping belongs here, one `key: value` a line"
    if type == "tuple_type":
        return "a list belongs here, one `- item` a line"
    return message.removeprefix("Value error, ")
