"""Builds the CustomResourceDefinition: schema, CEL rules, names, subresources and printer columns.

Pure: the same types give the same bytes. `python -m mirrorflow_operator.api.crd` prints it, and `make crds`
writes it to the files that kubectl and the chart use.

The schema is structural: it has no references, null or unions (KEP-2337). References are inlined, "T or null"
becomes an optional T, "integer or quantity" becomes `x-kubernetes-int-or-string`, and titles and examples are
left out. The server prunes unknown fields, so `additionalProperties: false` has no effect there. CEL rules
check the keys of maps, because a structural schema cannot.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

import yaml
from pydantic import BaseModel

from mirrorflow_operator.api.rules.table import validations
from mirrorflow_operator.api.spec import KIND, FlowMetadata, Spec
from mirrorflow_operator.api.status import Status

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
PLURAL: Final = "mirrorflows"
_NAMES: Final = {
    "kind": KIND,
    "listKind": f"{KIND}List",
    "plural": PLURAL,
    "singular": "mirrorflow",
    "shortNames": ["mf"],
    "categories": ["mirrorflow"],
}
_HEADER: Final = "# Generated from operator/mirrorflow_operator/api by `make crds`; changes go there.\n"
# Only the source connector has work that several pods can share.
_SUBRESOURCES: Final = {
    "status": {},
    "scale": {
        "specReplicasPath": ".spec.connectors.source.replicas",
        "statusReplicasPath": ".status.connectors.source.replicas",
        "labelSelectorPath": ".status.connectors.source.selector",
    },
}


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


def definition() -> dict[str, Any]:
    """Returns the whole object, as kubectl applies it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": _NAMES,
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema()},
                    "subresources": _SUBRESOURCES,
                    "additionalPrinterColumns": _COLUMNS,
                }
            ],
        },
    }


def schema() -> Schema:
    """Returns the schema of a MirrorFlow, with every rule at its path."""
    whole: Schema = {
        "description": "One direction of replication between two Kafka clusters.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # A definition may restrict no metadata but the name.
            "metadata": {
                "type": "object",
                "properties": {"name": structural(FlowMetadata)["properties"]["name"]},
            },
            "spec": structural(Spec),
            "status": structural(Status),
        },
    }
    # Only the operator writes the status, so there is none before its first write.
    whole["properties"]["status"].pop("default")
    for path, rule in validations():
        schema = whole
        for name in path.replace("[]", ".[]").split(".") if path else ():
            schema = schema["items"] if name == "[]" else schema["properties"][name]
        schema.setdefault("x-kubernetes-validations", []).append(rule)
    return whole


def text() -> str:
    """Returns the definition as YAML, in the order of the types, without line wrapping."""
    return _HEADER + yaml.dump(
        definition(), Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True
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
_COLUMNS: Final = [
    _column("Source", ".spec.source.alias"),
    _column("Target", ".spec.target.alias"),
    _column("State", ".spec.state"),
    _column("Ready", _condition("Ready", "status")),
    _column("Reason", _condition("Ready", "reason")),
    _column("Lag", ".status.lag"),
    _column("Age", ".metadata.creationTimestamp", kind="date"),
    _column("Version", ".status.version", priority=1),
    _column("Message", _condition("Ready", "message"), priority=1),
]

if __name__ == "__main__":
    sys.stdout.write(text())
