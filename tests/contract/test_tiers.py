"""`make test` can be trusted: a test without a marker breaks nothing and reads no clock, and each test has one command."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

from tests.requirements import BREAKS_BROKERS, FREEZES, READS_A_CLOCK, names_reached, needs

ROOT = Path(__file__).parents[2]
BY_HAND = {"java", "faults", "timing", "fuzz", "more"}


@cache
def kafka_tests() -> list[FunctionType]:
    """The test functions below tests/integration/kafka."""
    files = sorted((ROOT / "tests" / "integration" / "kafka").glob("test_*.py"))
    modules = [import_module(f"tests.integration.kafka.{file.stem}") for file in files]
    return [
        thing
        for module in modules
        for name, thing in vars(module).items()
        if name.startswith("test_") and isinstance(thing, FunctionType)
    ]


def markers_of(test: FunctionType) -> set[str]:
    """Its own and its module's."""
    own = getattr(test, "pytestmark", [])
    shared = test.__globals__.get("pytestmark", [])
    return {mark.name for mark in [*own, *(shared if isinstance(shared, list) else [shared])]}


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("freezes a process", FREEZES),
        ("reaches for a broker's process", BREAKS_BROKERS),
        ("reads a clock", READS_A_CLOCK),
    ],
    ids=["freezes", "breaks-brokers", "reads-a-clock"],
)
def test_a_test_without_a_marker_is_deterministic(what: str, names: frozenset[str]):
    offenders = [
        f"{test.__module__}.{test.__name__} {what}"
        for test in kafka_tests()
        if not markers_of(test) & BY_HAND
        and not needs(("integration", "kafka"), names_reached(test))
        and names_reached(test) & names
    ]

    assert offenders == []


def test_every_selection_of_the_makefile_is_disjoint_and_together_they_are_everything():
    """Each combination of markers is selected by exactly one of the commands."""
    makefile = (ROOT / "Makefile").read_text()
    selections = dict(re.findall(r"^SELECT_(\w+) := (.+)$", makefile, re.MULTILINE))
    markers = ["java", "spark", "api_server", "node", "more", "faults", "timing", "fuzz", "promise"]

    for number in range(2 ** len(markers)):
        present = {marker: bool(number >> at & 1) for at, marker in enumerate(markers)}
        if present["promise"] and not present["spark"]:
            continue  # the one Spark test
        chosen = [name for name, expression in selections.items() if eval(expression, {}, present)]
        assert len(chosen) == 1, (present, chosen)
