"""All that talks to brokers. It uses kafka-python's protocol classes, and nothing of its clients.

Its package imports those clients, too, which takes a quarter of the time in which a process of ours starts; so it is left
out until somebody, a user's own policy class perhaps, asks it for one of them.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Unopened(ModuleType):
    """A package whose modules can be imported, and which is executed itself when something of its own is asked for."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        assert spec is not None
        assert spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]  # once
        spec.loader.exec_module(self)
        return getattr(self, name)


def _leave_unopened(name: str) -> None:
    spec = importlib.util.find_spec(name) if name not in sys.modules else None
    if spec is not None and spec.submodule_search_locations is not None:
        package = _Unopened(name)
        package.__spec__, package.__loader__, package.__file__ = spec, spec.loader, spec.origin
        package.__path__ = spec.submodule_search_locations
        sys.modules[name] = package


_leave_unopened("kafka")
