"""Parses Kubernetes quantities of CPU, memory and bytes (k8s.io/apimachinery, pkg/api/resource).

A quantity is a number, alone or with a decimal unit (n to E), a binary unit (Ki to Ei) or an exponent (1e3):
`1E` is an exa, `1E3` a thousand. Negative quantities are not supported, because no field needs one.
"""

import re
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any, Final

from pydantic import Field

_UNITS: Final = "numkMGTPE"
PATTERN: Final = rf"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[{_UNITS}]|[eE][+-]?[0-9]{{1,2}})?$"
_VALID: Final = re.compile(PATTERN)
_PARTS: Final = re.compile(r"\+?([0-9.]+)(.*)")
_THOUSANDS: Final = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}

_AS_KUBERNETES: Final[dict[str, Any]] = {"x-kubernetes-int-or-string": True}
# A plain number is a quantity, too: `cpu: 1`.
Quantity = Annotated[
    Annotated[int, Field(strict=True, ge=0)] | Annotated[str, Field(max_length=20, pattern=PATTERN)],
    Field(json_schema_extra=_AS_KUBERNETES),
]


def amount(quantity: int | str) -> Decimal:
    """Returns the value of *quantity*, which must be valid."""
    found = _PARTS.fullmatch(str(quantity))
    assert found is not None
    number, unit = Decimal(found[1]), found[2]
    if unit in _BINARY:
        return number * Decimal(1024) ** _BINARY[unit]
    if unit in _THOUSANDS:
        return number.scaleb(3 * _THOUSANDS[unit])
    return number.scaleb(int(unit[1:]))


def same_amount(one: str, other: str) -> bool:
    """Returns whether both have the same value, in any notation: the API server rewrites quantities."""
    if _VALID.match(one) and _VALID.match(other):
        return amount(one) == amount(other)
    return one == other


def whole(quantity: int | str) -> int:
    """Returns *quantity* as a whole number, rounded up as Kubernetes does."""
    return int(amount(quantity).to_integral_value(ROUND_CEILING))
