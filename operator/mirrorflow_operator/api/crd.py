"""Builds the CustomResourceDefinitions: schema, CEL rules, names, subresources and printer columns.

Pure: the same types give the same bytes. `python -m mirrorflow_operator.api.crd mirrorflows` prints one, and `make crds`
writes them to the files that kubectl and the chart use.

The schema is structural: it has no references, null or unions (KEP-2337). References are inlined, "T or null"
becomes an optional T, "integer or quantity" becomes `x-kubernetes-int-or-string`, and titles and examples are
left out. The server prunes unknown fields, so `additionalProperties: false` has no effect there. CEL rules
check the keys of maps, because a structural schema cannot.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from pydantic import BaseModel

from mirrorflow_operator.api.mirror_pair import PAIR_KIND, PairSpec
from mirrorflow_operator.api.pair_status import PairStatus, SwitchoverStatus
from mirrorflow_operator.api.rules.pair_rules import PAIR_RULES, SWITCHOVER_RULES, validations_of
from mirrorflow_operator.api.rules.rule import Validation
from mirrorflow_operator.api.rules.table import authentication_validations, validations
from mirrorflow_operator.api.spec import KIND, FlowMetadata, Spec
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.api.switchover import SWITCHOVER_KIND, SwitchoverSpec

Schema = dict[str, Any]
DEPTH_MAX: Final = 20  # a recursive type has no structural schema
# Absent means the same; as defaults they would only be noise in every diff.
EMPTY: Final[tuple[Any, ...]] = (None, "", [])
_BOUNDS: Final = ("minimum", "pattern", "maxLength")  # each applies only to values of its type
# Members that a default added have no field manager, so server-side apply would merge them with those of the
# first manager that sets some: `include: [orders]` would still copy `.*`.
MERGED_LIST_TYPES: Final = frozenset({"set", "map"})
LEFT_OUT: Final = frozenset({"title", "examples", "propertyNames", "patternProperties"})
GROUP: Final = "mirrorflow.io"
VERSION: Final = "v1alpha1"
_HEADER: Final = "# Generated from operator/mirrorflow_operator/api by `make crds`; changes go there.\n"
# Only the source connector has work that several pods can share.
_SCALE: Final = {
    "scale": {
        "specReplicasPath": ".spec.connectors.source.replicas",
        "statusReplicasPath": ".status.connectors.source.replicas",
        "labelSelectorPath": ".status.connectors.source.selector",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceType:
    """One of our kinds: its names, its types, its rules by path, and what kubectl shows of it."""

    kind: str
    plural: str
    short_name: str
    noun: str
    description: str
    spec: type[BaseModel]
    status: type[BaseModel]
    rules: Iterable[tuple[str, Validation]]
    columns: Iterable[Schema]
    subresources: Mapping[str, Schema]

    @property
    def names(self) -> Schema:
        own = {
            "kind": self.kind,
            "listKind": f"{self.kind}List",
            "plural": self.plural,
            "singular": self.kind.lower(),
            "shortNames": [self.short_name],
        }
        # With another kind in the category, `kubectl get mirrorflow NAME` would name two kinds, and be refused.
        return {**own, "categories": ["mirrorflow"]} if self.kind == KIND else own


def structural(model: type[BaseModel]) -> Schema:
    """Returns the structural schema of *model*. Raises ValueError where it has none."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _converted(schema, schema.get("$defs", {}), path=model.__name__, depth=0)


def _converted(schema: Mapping[str, Any], definitions: Mapping[str, Any], *, path: str, depth: int) -> Schema:
    if depth > DEPTH_MAX:
        raise ValueError(f"{path} is recursive, so it has no structural schema")
    flat = _resolved(dict(schema), definitions, path)
    result = {key: value for key, value in flat.items() if key not in LEFT_OUT and key != "$defs"}
    below = depth + 1
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "properties" in result:
        result["properties"] = {
            name: _converted(member, definitions, path=f"{path}.{name}", depth=below)
            for name, member in result["properties"].items()
        }
        result.pop("additionalProperties", None)
        result = _with_default(result)
    elif result.get("type") == "object":
        values = next(
            iter(flat.get("patternProperties", {}).values()), result.pop("additionalProperties", None)
        )
        if isinstance(values, Mapping):
            result["additionalProperties"] = _converted(values, definitions, path=f"{path}.*", depth=below)
    if "items" in result:
        result["items"] = _converted(result["items"], definitions, path=f"{path}[]", depth=below)
        result["items"].pop("default", None)
        result["items"].pop("description", None)  # the list's own says what its entries are
    if result.get("default", ...) in EMPTY or result.get("x-kubernetes-list-type") in MERGED_LIST_TYPES:
        result.pop("default", None)
    if "type" not in result and "x-kubernetes-int-or-string" not in result:
        raise ValueError(f"{path} has no type")
    return result


def _resolved(schema: Schema, definitions: Mapping[str, Any], path: str) -> Schema:
    """Returns *schema* with its reference or its "T or null" resolved; keys of *schema* itself win."""
    while True:
        if "$ref" in schema:
            name = schema.pop("$ref").removeprefix("#/$defs/")
            schema = {**definitions[name], **schema}
        elif "anyOf" in schema:
            members = [member for member in schema.pop("anyOf") if member.get("type") != "null"]
            if schema.get("x-kubernetes-int-or-string"):
                bounds = {key: member[key] for member in members for key in _BOUNDS if key in member}
                return {**bounds, **schema}
            if len(members) != 1:
                if any(member.get("x-kubernetes-int-or-string") for member in members):
                    raise ValueError(f"{path} is a union of an int-or-string and other types")
                raise ValueError(f"{path} is a union of {len(members)} types")
            schema = {**members[0], **schema}
        else:
            return schema


def _with_default(schema: Schema) -> Schema:
    """Returns *schema* with a default if it is an object of optional fields, so that their defaults apply.

    A default that it already has stays (null: being absent has a meaning). The default is written out in
    full, because the API server evaluates rules on it without further defaults.
    """
    if "default" in schema or schema.get("required"):
        return schema
    inner = {name: member["default"] for name, member in schema["properties"].items() if "default" in member}
    return {**schema, "default": inner}


def definition(resource_type: ResourceType) -> dict[str, Any]:
    """Returns the whole object, as kubectl applies it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource_type.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": resource_type.names,
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema(resource_type)},
                    "subresources": {"status": {}, **resource_type.subresources},
                    "additionalPrinterColumns": list(resource_type.columns),
                }
            ],
        },
    }


def schema(resource_type: ResourceType) -> Schema:
    """Returns the schema of a kind, with every rule at its path."""
    name = structural(FlowMetadata)["properties"]["name"]
    whole: Schema = {
        "description": resource_type.description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # A definition may restrict no metadata but the name.
            "metadata": {
                "type": "object",
                "properties": {"name": {**name, "description": f"Name of the {resource_type.noun}."}},
            },
            "spec": structural(resource_type.spec),
            "status": structural(resource_type.status),
        },
    }
    # Only the operator writes the status, so there is none before its first write.
    whole["properties"]["status"].pop("default")
    for path, rule in resource_type.rules:
        schema = whole
        for name in path.replace("[]", ".[]").split(".") if path else ():
            match name:
                case "[]":
                    schema = schema["items"]
                case "*":
                    schema = schema["additionalProperties"]
                case _:
                    schema = schema["properties"][name]
        schema.setdefault("x-kubernetes-validations", []).append(rule)
    return whole


def text(resource_type: ResourceType) -> str:
    """Returns the definition as YAML, in the order of the types, without line wrapping."""
    return _HEADER + yaml.dump(
        definition(resource_type), Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True
    )


class _Dumper(yaml.SafeDumper):
    """Writes no anchors: a rule with two paths is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        """Returns True for all data, so that no value becomes an anchor."""
        return True


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


def _column(name: str, path: str, *, priority: int = 0, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path} | ({"priority": priority} if priority else {})


# The columns show whether something is wrong; `-o wide` adds the message.
_AGE: Final = _column("Age", ".metadata.creationTimestamp", kind="date")
MIRROR_FLOWS: Final = ResourceType(
    kind=KIND,
    plural="mirrorflows",
    short_name="mf",
    noun="flow",
    description="One direction of replication between two Kafka clusters.",
    spec=Spec,
    status=Status,
    rules=tuple(validations()),
    columns=(
        _column("Source", ".spec.source.alias"),
        _column("Target", ".spec.target.alias"),
        _column("State", ".spec.state"),
        _column("Ready", _condition("Ready", "status")),
        _column("Reason", _condition("Ready", "reason")),
        _column("Lag", ".status.lag"),
        _AGE,
        _column("Version", ".status.version", priority=1),
        _column("Message", _condition("Ready", "message"), priority=1),
    ),
    subresources=_SCALE,
)
MIRROR_PAIRS: Final = ResourceType(
    kind=PAIR_KIND,
    plural="mirrorpairs",
    short_name="mp",
    noun="pair",
    description="Two Kafka clusters with a flow in each direction, between which applications can be moved.",
    spec=PairSpec,
    status=PairStatus,
    rules=(*validations_of(PAIR_RULES), *authentication_validations("spec.members.*.probe")),
    columns=(
        _column("Active", ".status.active"),
        _column("Phase", ".status.phase"),
        _column("Reason", _condition("Ready", "reason")),
        _column("Refused s", ".status.predicted.writesRefusedSeconds", kind="integer"),
        _AGE,
        _column("Switchover", ".status.switchover.name", priority=1),
        _column("Message", _condition("Ready", "message"), priority=1),
    ),
    subresources={},
)
SWITCHOVERS: Final = ResourceType(
    kind=SWITCHOVER_KIND,
    plural="switchovers",
    short_name="swo",
    noun="switchover",
    description="One request to move the applications of a MirrorPair to its other cluster, and the record of it.",
    spec=SwitchoverSpec,
    status=SwitchoverStatus,
    rules=tuple(validations_of(SWITCHOVER_RULES)),
    columns=(
        _column("Pair", ".spec.pair"),
        _column("To", ".spec.to"),
        _column("Type", ".spec.type"),
        _column("State", ".status.state"),
        _column("Succeeded", _condition("Succeeded", "status")),
        _column("Refused ms", ".status.writesRefused.milliseconds", kind="integer"),
        _AGE,
        _column("Lost", ".status.loss.lostOffsetsAtLeast", kind="integer", priority=1),
        _column("Waits for", ".status.waitsFor", priority=1),
        _column("Message", _condition("Succeeded", "message"), priority=1),
    ),
    subresources={},
)
RESOURCE_TYPES: Final = (MIRROR_FLOWS, MIRROR_PAIRS, SWITCHOVERS)

if __name__ == "__main__":
    (wanted,) = sys.argv[1:]
    sys.stdout.write(next(text(known) for known in RESOURCE_TYPES if known.plural == wanted))
