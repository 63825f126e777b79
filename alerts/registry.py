"""Plug-ins found by a scan: a file in the right folder, a decorator on its class, and nothing else to edit."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Generic, TypeVar

_Plugin = TypeVar("_Plugin")


class Registry(Generic[_Plugin]):
    """The plug-ins of one package, by the name that configuration uses."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._found: dict[str, _Plugin] = {}

    def add(self, name: str, plugin: _Plugin) -> None:
        """Register under `name`; raise ValueError where another one has it."""
        if self._found.setdefault(name, plugin) is not plugin:
            raise ValueError(f"{self._package}: two plug-ins are named {name!r}")

    def all(self) -> dict[str, _Plugin]:
        """Import every module on the package's path and return what they registered, sorted by name."""
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        return dict(sorted(self._found.items()))
