"""What all types of the resource share: the base model and the bounded words and numbers fields are made of.

The types are structural on purpose (no unions of objects, no recursion, a bound on every list and text), because the
CRD is generated from them. Rules that span fields are in `validate`, never in a type.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PROPERTIES_MAX = 100
LIST_MAX = 100
TEXT_MAX = 2_048
PATTERNS_MAX = 500  # of topics or groups: a list anyone still reads


class ApiModel(BaseModel):
    """A frozen part of the resource; camelCase outside, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=False,
    )


# How server-side apply joins lists of several writers: by member, or by the member's key; without a word, whole.
LIST_SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}


def list_map(*keys: str) -> dict[str, Any]:
    """Members are told apart by *keys*."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


# RFC 1123, as Kubernetes names Secrets and ConfigMaps.
ObjectName = Annotated[
    str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", examples=["east-mirror"])
]
# A key of a Secret is a file name below the mount; dots alone would climb out of it.
DataKey = Annotated[
    str, Field(max_length=253, pattern=r"^\.{0,2}[-_a-zA-Z0-9][-._a-zA-Z0-9]*$", examples=["ca.crt"])
]
# The letters of topic names, because aliases become parts of them.
Alias = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[a-zA-Z0-9._-]+$")]
Pattern = Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]
# host:port; an IPv6 address stands in brackets.
Address = Annotated[str, Field(max_length=300, pattern=r"^([a-zA-Z0-9._-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$")]
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
RunId = Annotated[str, Field(max_length=63, pattern=r"^[-._a-zA-Z0-9]*$")]
