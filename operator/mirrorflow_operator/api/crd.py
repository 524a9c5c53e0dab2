"""Builds the CustomResourceDefinition: schema, CEL rules, names, subresources and printer columns.

Pure: the same types give the same bytes. `python -m mirrorflow_operator.api.crd` prints it, and `make crds`
writes it to the files that kubectl and the chart use.
"""

import sys
from typing import Any, Final

import yaml

from mirrorflow_operator.api.rules.table import validations
from mirrorflow_operator.api.spec import KIND, Metadata, Spec
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.api.structural import Schema, structural

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
    """Returns the schema of a MirrorFlow, with every rule at its place."""
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
                "properties": {"name": structural(Metadata)["properties"]["name"]},
            },
            "spec": structural(Spec),
            "status": structural(Status),
        },
    }
    # Only the operator writes the status, so there is none before its first write.
    whole["properties"]["status"].pop("default")
    for path, rule in validations():
        place = whole
        for name in path.replace("[]", ".[]").split("."):
            place = place["items"] if name == "[]" else place["properties"][name]
        place.setdefault("x-kubernetes-validations", []).append(rule)
    return whole


def text() -> str:
    """Returns the definition as YAML, in the order of the types, without line wrapping."""
    return _HEADER + yaml.dump(
        definition(), Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True
    )


class _Dumper(yaml.SafeDumper):
    """Without anchors: a rule that stands in two places is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        """Returns True: writes no anchors."""
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
# Only the source connector has work that several pods can share.
_SUBRESOURCES: Final = {
    "status": {},
    "scale": {
        "specReplicasPath": ".spec.connectors.source.replicas",
        "statusReplicasPath": ".status.connectors.source.replicas",
        "labelSelectorPath": ".status.connectors.source.selector",
    },
}

if __name__ == "__main__":
    sys.stdout.write(text())
