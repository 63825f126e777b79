"""Plug-ins found by a scan: a file in the right folder, a decorator on its class, and nothing else to edit."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Generic, TypeVar

_Plugin = TypeVar("_Plugin")


class Registry(Generic[_Plugin]):
    """The plug-ins of one package, by the name that configuration uses."""

    def __init__(self, package: str, *, in_subfolders: bool = False) -> None:
        """`in_subfolders`: they lie in the package's subpackages, beside `testing.py` with what only tests use."""
        self._package = package
        self._in_subfolders = in_subfolders
        self._found: dict[str, _Plugin] = {}

    def add(self, name: str, plugin: _Plugin) -> None:
        """Register under `name`; raise ValueError where another one has it."""
        if self._found.setdefault(name, plugin) is not plugin:
            raise ValueError(f"{self._package}: two plug-ins are named {name!r}")

    def remove(self, name: str) -> None:
        """Forget a plug-in whose file is gone: a test adds and removes one."""
        self._found.pop(name, None)

    def all(self) -> dict[str, _Plugin]:
        """Import every module on the package's path and return what they registered, sorted by name."""
        for package in self._packages():
            for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
                if not module.ispkg and module.name != "testing":
                    importlib.import_module(f"{package}.{module.name}")
        return dict(sorted(self._found.items()))

    def _packages(self) -> Iterator[str]:
        if not self._in_subfolders:
            yield self._package
            return
        for folder in pkgutil.iter_modules(importlib.import_module(self._package).__path__):
            if folder.ispkg:
                yield f"{self._package}.{folder.name}"
