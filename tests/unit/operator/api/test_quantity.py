"""Quantities are read as Kubernetes reads them."""

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_operator.api.model import QUANTITY_PATTERN, amount, rounded_up

UNITS = [
    "",
    "n",
    "u",
    "m",
    "k",
    "M",
    "G",
    "T",
    "P",
    "E",
    "Ki",
    "Mi",
    "Gi",
    "Ti",
    "Pi",
    "Ei",
    "e3",
    "E+3",
    "e-3",
]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (1, "1"),
        ("500m", "0.5"),
        ("100n", "1e-7"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("1E", "1e18"),
        ("1.5Ki", "1536"),
        (".5", "0.5"),
        ("+2.", "2"),
        ("2Ei", str(2 * 1024**6)),
    ],
)
def test_a_quantity_has_the_value_that_kubernetes_gives_it(written: int | str, expected: str) -> None:
    """Decimal units, binary units and exponents are read."""
    assert amount(written) == Decimal(expected)


@given(number=st.integers(min_value=0, max_value=10**6), unit=st.sampled_from(UNITS))
def test_the_amount_is_proportional_to_the_number(number: int, unit: str) -> None:
    """The pattern accepts every unit."""
    assert re.match(QUANTITY_PATTERN, f"{number}{unit}")
    assert amount(f"{number}{unit}") == number * amount(f"1{unit}")


@pytest.mark.parametrize(("written", "expected"), [("1500m", 2), ("1n", 1), ("50Mi", 52_428_800), (7, 7)])
def test_a_count_is_rounded_up(written: int | str, expected: int) -> None:
    """Kubernetes rounds up too, so a small amount never becomes 0."""
    assert rounded_up(written) == expected


@pytest.mark.parametrize("written", ["", "fast", "-1", "1K", "1ki", "1e", "1e100", "1 Mi", ".", "1.2.3"])
def test_quantities_invalid_in_kubernetes_are_refused(written: str) -> None:
    """This includes negative numbers and huge exponents."""
    assert re.match(QUANTITY_PATTERN, written) is None
