"""Derives what a test needs from the code that it reaches.

This is the only place that decides about the markers `java`, `spark`, `node` and `api_server`. `make test` needs only
one Kafka release, a JDK and pip. A test that needs more is marked because of its fixtures and the names in its code.
The functions of the test packages that it calls are searched too, but not the harness itself.
"""

import inspect
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

# Names of the harness that start Apache's own MirrorMaker 2 or Connect, or another release of Kafka.
JAVA: Final = frozenset({"MirrorMaker", "ConnectWorker", "OLD_VERSION", "OTHER_VERSIONS", "NEWEST_VERSION"})
SPARK: Final = frozenset({"SeedProcess", "spark_session", "spark", "pyspark"})
NODE_FOLDER: Final = "e2e"
API_SERVER_FOLDERS: Final = ("integration", "kubernetes")
# The tests that `make test` leaves to `make test-faults` (see tests/contract/test_tiers.py).
FREEZES: Final = frozenset({"freeze", "frozen", "freeze_between_fetches", "SIGSTOP"})
BREAKS_BROKERS: Final = frozenset({"broker"})
READS_A_CLOCK: Final = frozenset({"monotonic", "perf_counter", "cpu_s"})
_SEARCHED: Final = "tests."
_NOT_SEARCHED: Final = "tests.harness."


def needs(folders: tuple[str, ...], names: frozenset[str]) -> set[str]:
    """Returns the markers of a test below *folders* of tests/ whose code and fixtures use *names*."""
    wants = {
        "java": names & JAVA,
        "spark": names & SPARK,
        "node": NODE_FOLDER in folders,
        "api_server": folders[:2] == API_SERVER_FOLDERS,
    }
    return {marker for marker, is_needed in wants.items() if is_needed}


@cache
def names_reached(test: FunctionType) -> frozenset[str]:
    """Returns every global and attribute name in the code of *test*, in what it calls in the test packages, and in its
    module's imports.
    """
    names = {name for name, value in test.__globals__.items() if isinstance(value, ModuleType)}
    seen: set[int] = set()
    waiting: list[Any] = [test]
    while waiting:
        for function in _functions(waiting.pop()):
            if id(function) in seen:
                continue
            seen.add(id(function))
            used = {name for code in _codes(function.__code__) for name in code.co_names}
            used.update(inspect.signature(function).parameters)
            names |= used
            values = (function.__globals__.get(name) for name in used)
            waiting += [name for name in values if name is not None and _is_searched(name)]
    return frozenset(names)


def _functions(thing: Any) -> Iterator[FunctionType]:
    """Returns *thing* itself, the function behind a fixture or a decorator, or the methods of a class."""
    thing = getattr(thing, "_fixture_function", thing)
    if isinstance(thing, type):
        for member in vars(thing).values():
            method = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if isinstance(method, FunctionType):
                yield inspect.unwrap(method)
    elif callable(thing) and isinstance(unwrapped := inspect.unwrap(thing), FunctionType):
        yield unwrapped


def _is_searched(thing: Any) -> bool:
    module = getattr(getattr(thing, "_fixture_function", thing), "__module__", None) or ""
    return module.startswith(_SEARCHED) and not module.startswith(_NOT_SEARCHED)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
