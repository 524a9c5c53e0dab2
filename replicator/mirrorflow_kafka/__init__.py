"""Everything that talks to Kafka brokers, built on kafka-python's protocol classes without its clients.

The `kafka` package also imports those clients, which takes a quarter of the startup time of a MirrorFlow
process. Its `__init__` therefore runs only when code, such as a user's own policy class, accesses one of its
attributes.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Unopened(ModuleType):
    """A package whose submodules can be imported, and whose `__init__` runs on the first attribute access."""

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
