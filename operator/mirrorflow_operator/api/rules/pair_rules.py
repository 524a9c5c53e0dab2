"""Lists the validation rules of a MirrorPair and of a Switchover, each once, for the API server and for Python.

The types are checked before. What spans objects, such as two flows that do not mirror each other, is checked in
`mirror_pair`, because no rule of the API server sees another object.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from mirrorflow_operator.api.model import ApiModel
from mirrorflow_operator.api.rules.rule import Rule, Validation, locations_of
from mirrorflow_operator.api.rules.variable_rules import variable_rules
from mirrorflow_operator.errors import FieldError

_HOOKS: Final = ("spec.fence.hook", "spec.endpoint.hook")
_HOOK_VARIABLES: Final = tuple(f"{path}.job.env[]" for path in _HOOKS)
PAIR_RULES: Final = (
    Rule(
        paths=("spec.members",),
        member="key",
        violated_if="!key.matches('^[a-zA-Z0-9._-]{1,100}$')",
        is_violated=None,  # the type of the keys
        problem="it is no alias",
        action="write the alias that both flows give the cluster, of letters, digits, '.', '_' and '-'",
    ),
    Rule(
        paths=("spec.members",),
        violated_if="self.exists(a, self.exists(b, a != b && self[a].flow == self[b].flow))",
        is_violated=lambda self: len({member.flow for member in self.values()}) < len(self),
        problem="both name the same flow",
        action="write a flow of its own for each direction",
    ),
    Rule(
        paths=("spec.fence",),
        field="hook",
        violated_if="(self.method == 'Hook') != has(self.hook)",
        is_violated=lambda self: (self.method.value == "Hook") != (self.hook is not None),
        problem="method <<self.method>> contradicts it",
        action="write it for method Hook, and only then",
    ),
    Rule(
        paths=("spec.fence",),
        field="networkPolicy",
        violated_if="(self.method == 'NetworkPolicy') != has(self.networkPolicy)",
        is_violated=lambda self: (self.method.value == "NetworkPolicy") != (self.network_policy is not None),
        problem="method <<self.method>> contradicts it",
        action="write it for method NetworkPolicy, and only then",
    ),
    Rule(
        paths=("spec.fence.networkPolicy.allowed[]",),
        violated_if="has(self.cidr) == (has(self.podLabels) || has(self.namespaceLabels))",
        is_violated=lambda self: (
            (self.cidr is not None) == (self.pod_labels is not None or self.namespace_labels is not None)
        ),
        problem="a peer has either labels or cidr",
        action="write podLabels, namespaceLabels or both, or cidr",
    ),
    Rule(
        paths=("spec",),
        field="fence.networkPolicy.brokers",
        violated_if="has(self.fence.networkPolicy) && self.members.filter(m, !(m in self.fence.networkPolicy.brokers)).size() > 0",
        is_violated=lambda self: (
            self.fence.network_policy is not None
            and self.fence.network_policy.brokers.keys() != self.members.keys()
        ),
        problem="a member has none",
        action="write the labels of the broker pods of each alias of spec.members",
    ),
    Rule(
        paths=_HOOKS,
        violated_if="has(self.command) == has(self.job)",
        is_violated=lambda self: (self.command is None) == (self.job is None),
        problem="it takes one of command and job",
        action="write one of them",
    ),
    *variable_rules(own=_HOOK_VARIABLES, variables=_HOOK_VARIABLES),
    Rule(
        paths=("spec.fence",),
        field="exceptPrincipals",
        violated_if="has(self.exceptPrincipals) && self.exceptPrincipals.size() > 0 && self.method != 'DenyAcl'",
        is_violated=lambda self: self.except_principals and self.method.value != "DenyAcl",
        problem="method <<self.method>> has none",
        action="remove it, or set spec.fence.method to DenyAcl",
    ),
    Rule(
        paths=("spec.endpoint",),
        violated_if="[has(self.hook), has(self.service), has(self.configMap)].filter(given, given).size() != 1",
        is_violated=lambda self: (
            sum(part is not None for part in (self.hook, self.service, self.config_map)) != 1
        ),
        problem="it takes one of hook, service and configMap",
        action="write one of them",
    ),
    Rule(
        paths=("spec",),
        field="endpoint.service.externalNames",
        violated_if="has(self.endpoint) && has(self.endpoint.service) && self.members.filter(m, !(m in self.endpoint.service.externalNames)).size() > 0",
        is_violated=lambda self: (
            self.endpoint is not None
            and self.endpoint.service is not None
            and self.endpoint.service.external_names.keys() != self.members.keys()
        ),
        problem="a member has none",
        action="write one for each alias of spec.members",
    ),
    Rule(
        paths=("spec",),
        field="endpoint.configMap.values",
        violated_if="has(self.endpoint) && has(self.endpoint.configMap) && has(self.endpoint.configMap.values) "
        "&& self.members.filter(m, !(m in self.endpoint.configMap.values)).size() > 0",
        is_violated=lambda self: (
            self.endpoint is not None
            and self.endpoint.config_map is not None
            and self.endpoint.config_map.values is not None
            and self.endpoint.config_map.values.keys() != self.members.keys()
        ),
        problem="a member has none",
        action="write one for each alias of spec.members, or remove it",
    ),
)
SWITCHOVER_RULES: Final = (
    Rule(
        paths=("spec",),
        violated_if="self != oldSelf",
        is_violated=None,  # only the server knows the former value
        problem="it is immutable, because a switchover is carried out once",
        action="create another Switchover",
    ),
    Rule(
        paths=("spec",),
        field="acceptLoss",
        violated_if="self.type == 'Unplanned' && !(has(self.acceptLoss) && self.acceptLoss)",
        is_violated=lambda self: self.type == "Unplanned" and not self.accept_loss,
        problem="type Unplanned gives up the records that were not copied",
        action="set it to true if that is accepted; mirrorflow switchover --unplanned shows the loss, and changes nothing",
    ),
    Rule(
        paths=("spec",),
        field="acceptLoss",
        violated_if="self.type != 'Unplanned' && has(self.acceptLoss) && self.acceptLoss",
        is_violated=lambda self: self.type != "Unplanned" and self.accept_loss,
        problem="type <<self.type>> loses nothing",
        action="remove it, or set spec.type to Unplanned",
    ),
    Rule(
        paths=("spec",),
        field="liveGroups",
        violated_if="self.type == 'Unplanned' && has(self.liveGroups) && self.liveGroups",
        is_violated=lambda self: self.type == "Unplanned" and self.live_groups,
        problem="type Unplanned waits for no consumers",
        action="remove it",
    ),
    Rule(
        paths=("spec",),
        field="canary",
        violated_if="self.type != 'Rehearsal' && has(self.canary)",
        is_violated=lambda self: self.type != "Rehearsal" and self.canary is not None,
        problem="type <<self.type>> has none",
        action="remove it, or set spec.type to Rehearsal",
    ),
)


def check_object(resource: ApiModel, rules: Sequence[Rule]) -> list[FieldError]:
    """Returns the errors that *rules* find in *resource*, those of one field together."""
    locations = locations_of(resource)
    return sorted((error for rule in rules for error in rule.errors(locations)), key=lambda error: error.path)


def validations_of(rules: Sequence[Rule]) -> Iterator[tuple[str, Validation]]:
    """Yields each path with each of its rules for the API server."""
    for rule in rules:
        validation = rule.validation()
        for path in rule.paths:
            yield path, validation
