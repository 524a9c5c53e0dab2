"""The base model of all types of the resource, and the bounded texts and numbers that their fields use.

The types are structural (no unions of objects, no recursion, a bound on every list and text), because the CRD
is generated from them. Rules that span fields are in `validate`, never in a type.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PROPERTIES_MAX = 100
LIST_MAX = 100
TEXT_MAX = 2_048
PATTERNS_MAX = 500  # patterns of topics or groups; a longer list is unreadable


class ApiModel(BaseModel):
    """A frozen part of the resource; camelCase outside, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=False,
    )


# Server-side apply merges lists of several managers by member or by key; without a list type, as a whole.
LIST_SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}


def list_map(*keys: str) -> dict[str, Any]:
    """Returns the schema extension of a list whose members are identified by *keys*."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


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
# host:port, with an IPv6 address in brackets.
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
# A MirrorFlow's name, with its namespace and Kubernetes cluster, or MM2's `A->B` (`mirrorflow_core.naming.flow_id`).
FlowId = Annotated[
    str, Field(min_length=1, max_length=256, pattern=r"^[a-zA-Z0-9._>@-]+$", examples=["east-to-west"])
]
RunId = Annotated[str, Field(max_length=63, pattern=r"^[-._a-zA-Z0-9]*$")]
