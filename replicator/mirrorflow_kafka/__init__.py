"""Everything that talks to Kafka brokers, built on kafka-python's protocol classes without its clients.

The `kafka` package also imports those clients, which takes a quarter of the startup time of a MirrorFlow
process. Its `__init__` therefore runs only when code, such as a user's own policy class, accesses one of its
attributes.
"""

import importlib.util
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Unopened(ModuleType):
    """A package whose submodules can be imported, and whose `__init__` runs on the first attribute access."""

    def __init__(self, spec: ModuleSpec, loader: Loader, path: list[str]) -> None:
        super().__init__(spec.name)
        self.__spec__, self.__loader__, self.__file__, self.__path__ = spec, loader, spec.origin, path
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        loader = self._loader
        del self._loader
        self.__class__ = ModuleType  # type: ignore[assignment]  # once
        loader.exec_module(self)
        return getattr(self, name)


def _leave_unopened(name: str) -> None:
    spec = importlib.util.find_spec(name) if name not in sys.modules else None
    if spec is not None and spec.loader is not None and spec.submodule_search_locations is not None:
        sys.modules[name] = _Unopened(spec, spec.loader, spec.submodule_search_locations)


_leave_unopened("kafka")
