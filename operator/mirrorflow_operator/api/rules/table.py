"""All rules of a MirrorFlow, in one table: each stands once, for the API server and for Python.

The types (`spec`) are checked before. Each rule names its field as kubectl does, and what to write instead.
Rules of kind `PythonRule` are those that CEL cannot express. The server's list types (`set`, `map`) refuse
what `_repetitions` finds. The schema's bounds limit the cost of CEL (KEP-2876: ten million a rule).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from pydantic.alias_generators import to_snake

from mirrorflow_operator.api.connectors import ConnectorName
from mirrorflow_operator.api.model import ApiModel
from mirrorflow_operator.api.rules import clusters, topics, workloads
from mirrorflow_operator.api.rules.rule import PythonRule, Rule, Validation, places_of
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.errors import FieldError

RULES: Final[tuple[Rule | PythonRule, ...]] = (
    *clusters.RULES,
    *topics.RULES,
    *workloads.JOB_RULES,
    *workloads.RULES,
)


def check(flow: MirrorFlow) -> list[FieldError]:
    """Returns the errors that the rules find in *flow*, those of one field together."""
    places = places_of(flow)
    found = [*(error for rule in RULES for error in rule.errors(places)), *_repetitions(flow.spec, "spec")]
    return sorted(found, key=lambda error: error.path)


def ignored_fields(flow: MirrorFlow) -> list[FieldError]:
    """Returns a warning for each field of *flow* that is still accepted but has no effect."""
    return [
        FieldError(
            path=f"spec.connectors.{name.value}.autoscale",
            message="the operator ignores this field; the connector runs spec.connectors."
            f"{name.value}.replicas pods",
            action="remove it; a HorizontalPodAutoscaler or KEDA can set replicas by the scale subresource",
        )
        for name in ConnectorName
        if flow.spec.connectors.named(name).autoscale is not None
    ]


def validations() -> Iterator[tuple[str, Validation]]:
    """Yields each path with each of its rules for the API server."""
    for rule in RULES:
        if isinstance(rule, Rule):
            found = rule.validation()
            for path in rule.paths:
                yield path, found


def _repetitions(model: ApiModel, path: str) -> Iterator[FieldError]:
    """Yields an error for each entry of a set, or of a list with keys, that is listed twice."""
    for name, field in type(model).model_fields.items():
        value, here = getattr(model, name), f"{path}.{field.alias}"
        if isinstance(value, ApiModel):
            yield from _repetitions(value, here)
        elif isinstance(value, tuple):
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            keys = extra.get("x-kubernetes-list-map-keys", [])
            for at, entry in enumerate(value):
                if isinstance(entry, ApiModel):
                    yield from _repetitions(entry, f"{here}[{at}]")
            if "x-kubernetes-list-type" in extra:
                yield from _repeated(value, here, keys if isinstance(keys, list) else [])


def _repeated(entries: tuple[object, ...], path: str, keys: Sequence[object]) -> Iterator[FieldError]:
    names = [
        ", ".join(str(getattr(entry, to_snake(str(key)))) for key in keys)
        if keys
        else str(getattr(entry, "value", entry))
        for entry in entries
    ]
    for at, name in enumerate(names):
        if name in names[:at]:
            yield FieldError(
                path=f"{path}[{at}]", message=f"{name} is listed twice", action="remove one of them"
            )
