"""Imports modules of a package without running the package's `__init__`, which may import far more than is used."""

import importlib
import importlib.util
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Unopened(ModuleType):
    """A package whose submodules can be imported, and whose `__init__` runs when another attribute is accessed."""

    def __init__(self, spec: ModuleSpec, loader: Loader, path: list[str]) -> None:
        super().__init__(spec.name)
        self.__spec__, self.__loader__, self.__file__, self.__path__ = spec, loader, spec.origin, path
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        submodule = f"{self.__name__}.{name}"
        if submodule in sys.modules or importlib.util.find_spec(submodule) is not None:
            return importlib.import_module(submodule)
        loader = self._loader
        del self._loader
        self.__class__ = ModuleType  # type: ignore[assignment]  # once
        loader.exec_module(self)
        return getattr(self, name)


def leave_unopened(name: str) -> None:
    """Lets the submodules of package *name* be imported alone; does nothing if it is imported or not installed."""
    try:
        spec = importlib.util.find_spec(name) if name not in sys.modules else None
    except ModuleNotFoundError:  # its parent package
        return
    if spec is not None and spec.loader is not None and spec.submodule_search_locations is not None:
        unopened = _Unopened(spec, spec.loader, spec.submodule_search_locations)
        sys.modules[name] = unopened
        parent, _, child = name.rpartition(".")
        if parent:
            # An import does this after loading, but does not load what is in sys.modules. It does not open the parent.
            setattr(sys.modules[parent], child, unopened)
