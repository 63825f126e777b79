"""How a process says what befell it: an empty file for each thing, which can be made where nothing else may grow."""

from __future__ import annotations

import logging
from pathlib import Path

from typing_extensions import override


class Marks:
    """What one role felt since the fault began: the reasons it complained of, the steps it came to."""

    def __init__(self, folder: Path, role: str) -> None:
        self._folder, self._role = folder, role

    def __call__(self, what: str) -> None:
        """Note one thing; from any thread, any number of times."""
        self._path(what).touch()

    def has(self, what: str) -> bool:
        return self._path(what).exists()

    def _path(self, what: str) -> Path:
        return self._folder / f"{self._role}.{what}"


def clear_marks(folder: Path) -> None:
    """Forget what everybody felt."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()


class Complaints(logging.Handler):
    """Marks each warning and error of hallwatch's log by its reason, or by its name where it gives none."""

    def __init__(self, marks: Marks) -> None:
        super().__init__(logging.WARNING)
        self._marks = marks

    @override
    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        self._marks(str(fields.get("reason", record.getMessage())))
