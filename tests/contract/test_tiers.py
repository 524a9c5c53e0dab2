"""Each test is run by one make command. Tests without a marker are deterministic."""

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
    """Returns the test functions below tests/integration/kafka."""
    files = sorted((ROOT / "tests" / "integration" / "kafka").glob("test_*.py"))
    modules = [import_module(f"tests.integration.kafka.{file.stem}") for file in files]
    return [
        value
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("test_") and isinstance(value, FunctionType)
    ]


def markers_of(test: FunctionType) -> set[str]:
    """Returns the markers of a test and of its module."""
    own = getattr(test, "pytestmark", [])
    shared = test.__globals__.get("pytestmark", [])
    return {mark.name for mark in [*own, *(shared if isinstance(shared, list) else [shared])]}


@pytest.mark.parametrize(
    ("action", "names"),
    [
        ("freezes a process", FREEZES),
        ("breaks a broker", BREAKS_BROKERS),
        ("reads a clock", READS_A_CLOCK),
    ],
    ids=["freezes", "breaks-brokers", "reads-a-clock"],
)
def test_a_test_without_a_marker_is_deterministic(action: str, names: frozenset[str]):
    offenders = [
        f"{test.__module__}.{test.__name__} {action}"
        for test in kafka_tests()
        if not markers_of(test) & BY_HAND
        and not needs(("integration", "kafka"), names_reached(test))
        and names_reached(test) & names
    ]

    assert offenders == []


def test_each_combination_of_markers_is_selected_by_one_make_command():
    makefile = (ROOT / "Makefile").read_text()
    selections = dict(re.findall(r"^SELECT_(\w+) := (.+)$", makefile, re.MULTILINE))
    markers = ["java", "spark", "api_server", "node", "more", "faults", "timing", "fuzz", "promise"]

    for number in range(2 ** len(markers)):
        present = {marker: bool(number >> bit & 1) for bit, marker in enumerate(markers)}
        if present["promise"] and not present["spark"]:
            continue  # only a Spark test has this marker
        selected = [name for name, expression in selections.items() if eval(expression, {}, present)]
        assert len(selected) == 1, (present, selected)
