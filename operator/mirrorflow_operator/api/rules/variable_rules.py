"""The rules of environment variables, which pods of connectors and Jobs of hooks have alike."""

from collections.abc import Sequence

from mirrorflow_operator.api.rules.rule import Rule


def variable_rules(own: Sequence[str], variables: Sequence[str]) -> tuple[Rule, ...]:
    """Returns the rules of *variables*, paths of lists; those of *own* are in containers for which the operator sets some."""
    return (
        Rule(
            paths=tuple(own),
            violated_if="self.name.startsWith('MIRRORFLOW_')",
            is_violated=lambda self: self.name.startswith("MIRRORFLOW_"),
            problem="the operator sets this variable",
            action="remove it",
        ),
        Rule(
            paths=tuple(variables),
            field="valueFrom",
            violated_if="has(self.valueFrom) && has(self.value) && self.value != ''",
            is_violated=lambda self: self.value_from is not None and self.value,
            problem="it has both value and valueFrom",
            action="set one of them",
        ),
        Rule(
            paths=tuple(f"{path}.valueFrom" for path in variables),
            violated_if="[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].filter(set, set).size() != 1",
            is_violated=lambda self: (
                sum(
                    part is not None
                    for part in (self.secret_key_ref, self.config_map_key_ref, self.field_ref)
                )
                != 1
            ),
            problem="a reference has exactly one source",
            action="set one of secretKeyRef, configMapKeyRef and fieldRef",
        ),
    )
