"""A Redfish service that was recorded: its documents as files, in whatever layout they were saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from contract.errors import CollectError
from ingest.coolant.redfish_client import ROOT, NotThere, checked_path

MAX_FILES = 20_000
MAX_FILE_BYTES = 1_048_576


class RedfishFolder:
    """The documents of a folder: a mockup as DMTF lays it out, or files of any name with their own `@odata.id`.

    Where the way to a document was not saved, it is made up: a document that links what lies below it.
    """

    def __init__(self, folder: Path) -> None:
        """Raise CollectError(no_data) where there is no document: a file that is none is left out."""
        self._documents: dict[str, dict[str, Any]] = {}
        for file in sorted(folder.rglob("*.json"))[:MAX_FILES]:
            document = _read(file)
            path = checked_path(document.get("@odata.id"))
            if file.name == "index.json":  # a mockup: the place counts, whatever the document says of itself
                place = file.parent.relative_to(folder).as_posix().removeprefix("redfish/v1").strip("/.")
                path = ROOT + place if document else None
            if path is not None and path.startswith(ROOT):
                self._documents.setdefault(path.rstrip("/"), document)
        if not self._documents:
            raise CollectError("no_data", f"{folder}: no document of a Redfish service")

    def get(self, path: str) -> dict[str, Any]:
        """Return a document; raise NotThere."""
        path = path.rstrip("/")
        found = self._documents.get(path)
        if found is not None:
            return found
        below = {
            other[len(path) + 1 :].partition("/")[0]
            for other in self._documents
            if other.startswith(f"{path}/")
        }
        if not below:
            raise NotThere(path)
        links = {name: {"@odata.id": f"{path}/{name}"} for name in sorted(below)}
        return {"@odata.id": path, "Members": list(links.values()), **links}


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            document = orjson.loads(opened.read(MAX_FILE_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return {}
    return document if isinstance(document, dict) else {}
