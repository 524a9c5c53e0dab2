"""All rules of a MirrorFlow, in one table: each stands once, for the API server and for Python.

The types (`spec`) are checked before. Each rule names its field as kubectl does, and what to write instead.
Rules of kind `PythonRule` are those that CEL cannot express. The server's list types (`set`, `map`) refuse
what `_repetitions` finds. The schema's bounds limit the cost of CEL (KEP-2876: ten million a rule).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic.alias_generators import to_snake

from mirrorflow_core.java.pattern_syntax import PatternSyntaxError
from mirrorflow_core.java.patterns import JavaPattern
from mirrorflow_core.replication_policy import alias_split_problem, is_alias_split
from mirrorflow_operator.api.model import ApiModel
from mirrorflow_operator.api.rules import workloads
from mirrorflow_operator.api.rules.rule import (
    PythonRule,
    Rule,
    RuleWord,
    Validation,
    never_changes,
    places_of,
    value_below,
)
from mirrorflow_operator.api.spec import AuthenticationType, InitialPosition, MirrorFlow, NamingPolicy
from mirrorflow_operator.api.status import seconds
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.errors import FieldError

PORT_MAX: Final = 65_535
# The first address of the target that the source has, too.
_SHARED: Final = "self.source.bootstrapServers.filter(a, a in self.target.bootstrapServers)"
_CLIENT: Final = "^((consumer|producer|admin)[.])?"
# Set by `tls` and `authentication`; if `config` set them as well, one of the two would silently win.
_SECURITY: Final = f"{_CLIENT}(security|ssl|sasl)[.]"
_ADDRESSES: Final = f"{_CLIENT}bootstrap[.]servers$"
_SENSITIVE: Final = "([.]password|[.]secret|[.]passphrase|keystore[.]key|sasl[.]jaas[.]config)$"
_PORT: Final = "int(entry.substring(entry.lastIndexOf(':') + 1))"
_REQUIRED: Final[Mapping[AuthenticationType, tuple[str, ...]]] = {
    AuthenticationType.TLS: ("certificateAndKey",),
    AuthenticationType.PLAIN: ("username", "password"),
    AuthenticationType.SCRAM_SHA_256: ("username", "password"),
    AuthenticationType.SCRAM_SHA_512: ("username", "password"),
    AuthenticationType.OAUTH_BEARER: ("clientId", "clientSecret", "tokenEndpoint"),
    AuthenticationType.CUSTOM: ("config",),
}
_OPTIONAL: Final[Mapping[AuthenticationType, tuple[str, ...]]] = {AuthenticationType.OAUTH_BEARER: ("scope",)}
_ALLOWED: Final = {kind: (*fields, *_OPTIONAL.get(kind, ())) for kind, fields in _REQUIRED.items()}


def may_hold_secret(key: str) -> bool:
    """Returns whether the value of a Java client's property *key* is, or may contain, a secret."""
    return re.search(_SENSITIVE, key) is not None


def _shared(spec: Any) -> list[str]:
    return [one for one in spec.source.bootstrap_servers if one in spec.target.bootstrap_servers]


def _requires(kind: AuthenticationType, field: str) -> Rule:
    return Rule(
        paths=("spec.source.authentication", "spec.target.authentication"),
        field=field,
        wrong=f"self.type == '{kind.value}' && !has(self.{field})",
        is_wrong=lambda self: self.type is kind and not value_below(self, field),
        problem="it is missing",
        cure=f"type {kind.value} needs {', '.join(_REQUIRED[kind])}",
    )


def _belongs(field: str) -> Rule:
    kinds = [kind for kind, fields in _ALLOWED.items() if field in fields]
    others = [kind for kind in _ALLOWED if kind not in kinds]
    listed = ", ".join(f"'{kind.value}'" for kind in others)
    known = ", ".join(f"'{kind.value}': '{', '.join(_ALLOWED[kind])}'" for kind in others)
    return Rule(
        paths=("spec.source.authentication", "spec.target.authentication"),
        field=field,
        wrong=f"has(self.{field}) && self.type in [{listed}]",
        is_wrong=lambda self: value_below(self, field) and self.type in others,
        problem="it has no meaning with <<type>>",
        cure="remove it; this type has <<fields>>",
        words={
            "type": RuleWord(
                cel="'type ' + self.type", python=lambda self: f"type {self.type.value}", plain="this type"
            ),
            "fields": RuleWord(
                cel=f"{{{known}}}[self.type]",
                python=lambda self: ", ".join(_ALLOWED[self.type]),
                plain="other fields",
            ),
        },
    )


def _of_cluster(path: str) -> Iterator[Rule]:
    """Yields the rules whose messages name fields of this cluster."""
    yield never_changes(f"{path}.alias")
    yield Rule(
        paths=(f"{path}.config",),
        member="key",
        wrong=f"key.matches('{_SECURITY}')",
        is_wrong=lambda key, _: re.search(_SECURITY, key),
        problem="security is not set here",
        cure=f"use {path}.tls and {path}.authentication (type Custom takes any sasl. and ssl. key)",
    )
    yield Rule(
        paths=(f"{path}.config",),
        member="key",
        wrong=f"key.matches('{_ADDRESSES}')",
        is_wrong=lambda key, _: re.search(_ADDRESSES, key),
        problem="addresses are not set here",
        cure=f"use {path}.bootstrapServers",
    )
    yield Rule(
        paths=(f"{path}.authentication.config",),
        member="key",
        wrong="!key.startsWith('sasl.') && !key.startsWith('ssl.')",
        is_wrong=lambda key, _: not key.startswith(("sasl.", "ssl.")),
        problem="it is not a sasl. or ssl. property",
        cure=f"move it to {path}.config",
    )


CLUSTER_RULES: Final = (
    Rule(
        paths=("spec",),
        field="target.alias",
        wrong="self.source.alias == self.target.alias",
        is_wrong=lambda self: self.source.alias == self.target.alias,
        problem="<<self.target.alias>> is also the alias of the source",
        cure="give each cluster its own alias",
    ),
    Rule(
        paths=("spec",),
        field="target.bootstrapServers",
        wrong="self.source.bootstrapServers.exists(a, a in self.target.bootstrapServers)",
        is_wrong=_shared,
        problem="<<address>> is also an address of the source, so the flow would copy its own copies",
        cure="name two different clusters",
        words={
            "address": RuleWord(
                cel=f"{_SHARED}[0]", python=lambda self: _shared(self)[0], plain="one of them"
            )
        },
    ),
    *_of_cluster("spec.source"),
    *_of_cluster("spec.target"),
    Rule(
        paths=("spec.source.bootstrapServers", "spec.target.bootstrapServers"),
        member="entry",
        wrong=f"entry.matches(':[0-9]{{1,5}}$') && ({_PORT} == 0 || {_PORT} > {PORT_MAX})",
        is_wrong=lambda entry, _: not 0 < int(entry.rpartition(":")[2]) <= PORT_MAX,
        problem="<<entry>> has an impossible port",
        cure=f"write host:port with a port from 1 to {PORT_MAX}",
    ),
    Rule(
        paths=("spec.source.tls.trustedCertificates[]", "spec.target.tls.trustedCertificates[]"),
        wrong="has(self.secretName) == has(self.configMapName)",
        is_wrong=lambda self: (self.secret_name is None) == (self.config_map_name is None),
        problem="it needs either secretName or configMapName",
        cure="name the Secret or the ConfigMap that contains the PEM file",
    ),
    Rule(
        paths=("spec.source", "spec.target"),
        field="tls",
        wrong="has(self.authentication) && self.authentication.type == 'Tls' && !has(self.tls)",
        is_wrong=lambda self: (
            self.authentication is not None
            and self.authentication.type is AuthenticationType.TLS
            and self.tls is None
        ),
        problem="it is missing, and authentication type Tls needs it",
        cure="write at least tls: {}",
    ),
    *(_requires(kind, field) for kind, fields in _REQUIRED.items() for field in fields),
    *(_belongs(field) for field in dict.fromkeys(field for fields in _ALLOWED.values() for field in fields)),
    Rule(
        paths=tuple(
            f"spec.{side}.authentication.{name}"
            for side in ("source", "target")
            for name in ("username", "clientId")
        ),
        wrong="has(self.value) ? has(self.secretName) || has(self.key) : !has(self.secretName) || !has(self.key)",
        is_wrong=lambda self: (
            (self.value is None, self.secret_name is None, self.key is None)
            not in {(False, True, True), (True, False, False)}
        ),
        problem="it needs either value, or secretName and key",
        cure="write {value: ...} or {secretName: ..., key: ...}",
    ),
    Rule(
        paths=("spec.source.authentication.config", "spec.target.authentication.config"),
        member="key",
        wrong=f"key.matches('{_SENSITIVE}') && !self[key].contains('${{')",
        is_wrong=lambda key, self: may_hold_secret(key) and "${" not in self[key],
        problem="it contains a secret in plain text",
        cure="write a reference such as ${dir:/path:key}",
    ),
)


_OF_EXCEPTIONS: Final = (
    "spec.topics.configs.exceptions[].topics",
    "spec.topics.configs.exceptions[].exclude",
)
_PATTERNS: Final = (
    "spec.topics.include",
    "spec.topics.exclude",
    "spec.topics.configs.exclude",
    *_OF_EXCEPTIONS,
    "spec.groups.include",
    "spec.groups.exclude",
)
_NOT_A_REGEX: Final = "is not a Java regular expression"
_REGEX_CURE: Final = "correct it; a lone * is written .*"
_LONE_QUANTIFIER: Final = "^[*+?]"
# The server checks the shape, Python also the date.
_TIMESTAMP: Final = "^[0-9-]{8,10}T[0-9:.]+(Z|[+-][0-9:]+)$"


def _not_regexes(patterns: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Finds patterns that Java would refuse, alone or joined by `|`, which is how MM2 reads a list."""
    is_valid = True
    for at, pattern in enumerate(patterns):
        try:
            JavaPattern(pattern)
        except PatternSyntaxError as error:
            is_valid = False
            if not re.search(_LONE_QUANTIFIER, pattern):
                yield f"[{at}]", f"'{pattern}' {_NOT_A_REGEX}: {error}", _REGEX_CURE
    if is_valid and patterns:
        try:
            JavaPattern("|".join(patterns))
        except PatternSyntaxError as error:
            yield "", f"its entries cannot be joined by |, as MM2 does: {error}", "change one"


def _separated(side: str) -> Rule:
    return Rule(
        paths=("spec",),
        field=f"{side}.alias",
        wrong="self.topics.naming.policy == 'Prefix'"
        f" && self.{side}.alias.contains(self.topics.naming.separator)",
        is_wrong=lambda self: (
            self.topics.naming.policy is NamingPolicy.PREFIX
            and is_alias_split(getattr(self, side).alias, self.topics.naming.separator)
        ),
        problem=f"it {alias_split_problem('<<self.topics.naming.separator>>')}",
        cure="choose another alias, or another spec.topics.naming.separator",
    )


TOPIC_RULES: Final = (
    _separated("source"),
    _separated("target"),
    never_changes("spec.topics.naming", "policy <<oldSelf.policy>> and separator '<<oldSelf.separator>>'"),
    never_changes("spec.offsetSyncs.location"),
    Rule(
        paths=("spec.topics.include",),
        wrong="self.size() == 0",
        is_wrong=lambda self: not self,
        problem="it is empty, so no topic would be copied",
        cure='write [".*"] for all topics',
    ),
    Rule(
        paths=_PATTERNS,
        member="entry",
        wrong="entry.contains(',')",
        is_wrong=lambda entry, _: "," in entry,
        problem="'<<entry>>' contains a comma, at which MM2 splits its lists",
        cure="write two entries",
    ),
    Rule(
        paths=_PATTERNS,
        member="entry",
        wrong="entry != entry.trim()",
        is_wrong=lambda entry, _: entry != entry.strip(),
        problem="'<<entry>>' starts or ends with a blank, which no name does",
        cure="remove the blanks",
    ),
    Rule(
        paths=_PATTERNS,
        member="entry",
        wrong=f"entry.matches('{_LONE_QUANTIFIER}')",
        is_wrong=lambda entry, _: re.search(_LONE_QUANTIFIER, entry),
        problem=f"'<<entry>>' {_NOT_A_REGEX}",
        cure=_REGEX_CURE,
    ),
    PythonRule(paths=_PATTERNS, find=_not_regexes),
    # They become `topics:settings`, which is split at the colon.
    Rule(
        paths=_OF_EXCEPTIONS,
        member="entry",
        wrong="entry.replace('(?:', '').contains(':')",
        is_wrong=lambda entry, _: ":" in entry.replace("(?:", ""),
        problem="'<<entry>>' contains a colon, which no topic and no setting has in its name",
        cure="remove it",
    ),
    Rule(
        paths=("spec.topics.startFrom",),
        field="timestamp",
        wrong="self.position == 'Timestamp' && !has(self.timestamp)",
        is_wrong=lambda self: self.position is InitialPosition.TIMESTAMP and self.timestamp is None,
        problem="it is missing",
        cure="write a time such as 2026-01-31T00:00:00Z",
    ),
    Rule(
        paths=("spec.topics.startFrom",),
        field="timestamp",
        wrong="has(self.timestamp) && self.position != 'Timestamp'",
        is_wrong=lambda self: self.timestamp is not None and self.position is not InitialPosition.TIMESTAMP,
        problem="it contradicts position <<self.position>>",
        cure="set position to Timestamp, or remove it",
    ),
    Rule(
        paths=("spec.topics.startFrom",),
        field="timestamp",
        wrong=f"has(self.timestamp) && self.position == 'Timestamp' && !self.timestamp.matches('{_TIMESTAMP}')",
        is_wrong=lambda self: (
            self.timestamp is not None
            and self.position is InitialPosition.TIMESTAMP
            and seconds(self.timestamp) is None
        ),
        problem="'<<self.timestamp>>' is not a time with a time zone",
        cure="write it as 2026-01-31T00:00:00Z",
    ),
    Rule(
        paths=("spec.topics.replicationFactor",),
        wrong="self == 0",
        is_wrong=lambda self: self == 0,
        problem="it is 0",
        cure="write -1 for the target's default, or at least 1",
    ),
)


RULES: Final[tuple[Rule | PythonRule, ...]] = (
    *CLUSTER_RULES,
    *TOPIC_RULES,
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
        for name in ConnectorKind
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
