"""The rules of the source and the target: different clusters, addresses, certificates, authentication."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mirrorflow_operator.api.rules.rule import Rule, RuleWord, never_changes, value_below
from mirrorflow_operator.api.spec import AuthenticationType

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


RULES: Final = (
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
