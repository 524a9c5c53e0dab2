"""Defines the base model of the resource's types, and the bounded texts, numbers and quantities of their fields.

The types are structural (no unions of objects, no recursion, a bound on every list and text), because the CRD
is generated from them. Rules that span fields are in `rules`, never in a type.

Quantities of CPU, memory and bytes are those of Kubernetes (k8s.io/apimachinery, pkg/api/resource): a number,
alone or with a decimal unit (n to E), a binary unit (Ki to Ei) or an exponent (1e3). `1E` is an exa, `1E3` a
thousand. Negative quantities are not supported, because no field needs one.
"""

import re
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PROPERTIES_MAX = 100
LIST_MAX = 100
TEXT_MAX = 2_048
PATTERNS_MAX = 500  # patterns of topics or groups; a longer list is unreadable
# Server-side apply merges lists of several managers by member or by key; without a list type, as a whole.
LIST_SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
# RFC 1123, the rule for names of Secrets and ConfigMaps.
ObjectName = Annotated[
    str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", examples=["east-mirror"])
]
# A key of a Secret is a file name below the mount; a name such as `..` would leave it.
DataKey = Annotated[
    str, Field(max_length=253, pattern=r"^\.{0,2}[-_a-zA-Z0-9][-._a-zA-Z0-9]*$", examples=["ca.crt"])
]
# The characters of topic names, because aliases become part of them.
Alias = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[a-zA-Z0-9._-]+$")]
Pattern = Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]
# host:port, as `rules.table` checks: the API server answers a schema's pattern with the bare expression.
Address = Annotated[str, Field(max_length=300, examples=["kafka-east:9092"])]
PropertyName = Annotated[str, Field(max_length=253, pattern=r"^[a-zA-Z][a-zA-Z0-9._-]*$")]
PropertyValue = Annotated[str, Field(max_length=TEXT_MAX)]
Properties = Annotated[dict[PropertyName, PropertyValue], Field(max_length=PROPERTIES_MAX)]
LabelName = Annotated[
    str,
    Field(
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?$",
    ),
]
# A MirrorFlow's name, with its namespace and Kubernetes cluster, or MM2's `A->B` (`mirrorflow_core.replication_policy`).
FlowId = Annotated[
    str, Field(min_length=1, max_length=256, pattern=r"^[a-zA-Z0-9._>@-]+$", examples=["east-to-west"])
]
RunId = Annotated[str, Field(max_length=63, pattern=r"^[-._a-zA-Z0-9]*$")]
_UNITS: Final = "numkMGTPE"
QUANTITY_PATTERN: Final = rf"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[{_UNITS}]|[eE][+-]?[0-9]{{1,2}})?$"
_VALID: Final = re.compile(QUANTITY_PATTERN)
_THOUSANDS: Final = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_AS_KUBERNETES: Final[dict[str, Any]] = {"x-kubernetes-int-or-string": True}
# A plain number is a quantity, too: `cpu: 1`.
Quantity = Annotated[
    Annotated[int, Field(strict=True, ge=0)] | Annotated[str, Field(max_length=20, pattern=QUANTITY_PATTERN)],
    Field(json_schema_extra=_AS_KUBERNETES),
]


class ApiModel(BaseModel):
    """A frozen part of the resource; camelCase outside, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=False,
        defer_build=True,
    )


def list_map(*keys: str) -> dict[str, Any]:
    """Returns the schema extension of a list whose members are identified by *keys*."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def amount(quantity: int | str) -> Decimal:
    """Returns the value of *quantity*, which must be valid."""
    text = str(quantity)
    unit = text.lstrip("+0123456789.")
    number = Decimal(text.removesuffix(unit))
    if unit in _BINARY:
        return number * Decimal(1024) ** _BINARY[unit]
    if unit in _THOUSANDS:
        return number.scaleb(3 * _THOUSANDS[unit])
    return number.scaleb(int(unit[1:]))


def same_amount(value: str, other: str) -> bool:
    """Returns whether both have the same value, in any notation: the API server rewrites quantities."""
    if _VALID.match(value) and _VALID.match(other):
        return amount(value) == amount(other)
    return value == other


def rounded_up(quantity: int | str) -> int:
    """Returns *quantity* as a whole number, rounded up as Kubernetes does."""
    return int(amount(quantity).to_integral_value(ROUND_CEILING))
