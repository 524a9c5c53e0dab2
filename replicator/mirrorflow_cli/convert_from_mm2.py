"""Reads the Java flows of an mm2.properties, with the properties that MirrorMakerConfig derives for each.

`config.dedicated_mode` derives them. Each enabled flow becomes one JavaFlow. MM2 also emits heartbeats
between clusters without a flow: these belong to the flow in the other direction (`heartbeats.emitTo:
[Source]`), or are listed if there is none. References in settings that are not secret are resolved now, as
MM2 does at start.

`security.protocol`, `ssl.*` and `sasl.*` become `tls` and `authentication`. Passwords, keys and certificates
become names of Secrets, which the caller lists; their values are not passed on. Settings that the named types can
express use them. Anything else (cipher suites, SASL over a client certificate, token options) makes the whole an
`authentication` of type Custom with Java's properties.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mirrorflow_cli.convert_schemas import converted_schemas, secret_prefix
from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.java_flow import (
    CLASS_NAMES,
    CLIENT_KINDS,
    FIELDS,
    HEARTBEAT,
    SCHEMAS,
    SECRETS_MOUNT,
    SOURCE,
    ConversionFindings,
    JavaCluster,
    JavaFlow,
)
from mirrorflow_core import setting_table
from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError, UnresolvedReferenceError
from mirrorflow_core.java.cloud_logins import (
    AWS_IGNORED_OPTIONS,
    AWS_MECHANISM,
    AWS_SECRET_OPTIONS,
    CLIENT_HANDLER_KEY,
    LOGIN_HANDLER_KEY,
    PROFILES_REFUSED,
    STRIMZI_GRANTS_REFUSED,
    STRIMZI_HANDLER,
    cloud_authentication,
    names_cloud_identity,
    strimzi_login,
)
from mirrorflow_core.java.jaas import LoginModule, parse_jaas
from mirrorflow_core.java.properties import PropertyReader, has_reference, read_list, references
from mirrorflow_core.java.security_keys import verdict
from mirrorflow_core.setting_table import Scope, Verdict
from mirrorflow_replicator.config import clients
from mirrorflow_replicator.config.dedicated_mode import (
    connector_properties,
    load_mm2,
    read_mm2,
    worker_properties,
)
from mirrorflow_replicator.config.providers import PROVIDERS_KEY, Resolver

_PLACEHOLDER = re.compile(r"mirrorflowReference(\d+)x")


_HEARTBEATS = "emit.heartbeats.enabled"
_EMIT_TO = "mirrorflow.heartbeats.emit.to"
_SECRET = re.compile(
    r"(.*\.)?(jaas\.config|password|secret|passphrase|keystore\.key|certificate\.chain|certificates"
    r"|basic\.auth\.user\.info|bearer\.auth\.token)"
)
_SIDE = re.compile(r"(source|target)\.(cluster|consumer|producer|admin)\.")
# The reader's text for a setting without effect; its warnings about comments and old names are not losses.
_NO_EFFECT = re.compile(r"no effect")
_ADDRESS_SCHEME = re.compile(r"^[A-Za-z_]+://")
_REGISTRY = re.compile(r"(^|\.)(schema\.registry|mirrorflow\.schemas)\.")
# Settings of the process, which its runner or the operator chooses; a MirrorFlow has none of them.
_PROCESS = re.compile(
    r"(mirrorflow\.http\.|listeners|rest\.|dedicated\.mode|admin\.listeners|access\.control|response\.http)"
)


# A worker's defaults for these are not passed on: they are no settings of the file, and have no effect.
_NAMES_WITHOUT_EFFECT = {"client.id", "config.storage.topic", "status.storage.topic"}
# Without these, another flow than that of the file would be converted.
_REQUIRED = (*FIELDS, "bootstrap.servers")
_MECHANISMS = {"PLAIN": "Plain", "SCRAM-SHA-256": "ScramSha256", "SCRAM-SHA-512": "ScramSha512"}
_TOKEN_MECHANISMS = {"OAUTHBEARER", AWS_MECHANISM}
_MODULES = {
    "Plain": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "ScramSha256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "ScramSha512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_KEYSTORE = ("ssl.keystore.", "ssl.key.password")
_TRUSTSTORE = "ssl.truststore."
_OAUTH = "sasl.oauthbearer."
_OAUTH_ENDPOINT = f"{_OAUTH}token.endpoint.url"
_OAUTH_ID = f"{_OAUTH}client.credentials.client.id"
_OAUTH_OF_CLIENT = f"{_OAUTH}client.credentials.client.secret"
_OAUTH_SCOPE = f"{_OAUTH}scope"
# Expressed by `type`, `tls` and their fields; any other setting needs Custom.
_EXPRESSED = {
    "security.protocol",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    "sasl.jaas.config",
}
_OAUTH_EXPRESSED = {
    _OAUTH_ENDPOINT,
    _OAUTH_ID,
    _OAUTH_OF_CLIENT,
    _OAUTH_SCOPE,
    LOGIN_HANDLER_KEY,
    CLIENT_HANDLER_KEY,
}
# Options of a login module, by their last word: password, ssl.truststore.password, clientSecret, oauth.refresh.token.
_SECRET_OPTION = re.compile(r".*(?:password|passphrase|secret|private\.?key|assertion|token)", re.IGNORECASE)


def java_flows(text: str, findings: ConversionFindings) -> list[JavaFlow]:
    """Returns the enabled flows of an mm2.properties, in file order. Raises InvalidSettingError."""
    about_text: list[str] = []
    raw, aliases = read_mm2(text, about_text)
    for warning in about_text:
        if not _NO_EFFECT.search(warning):
            findings.add_warning(warning)
    raw = _resolved(raw, findings)
    registries = {key: value for key, value in raw.items() if _REGISTRY.search(key)}
    raw = {key: value for key, value in raw.items() if key not in registries}
    _note_warnings(text, findings)
    read = PropertyReader(raw, Resolver(raw))
    pairs = [(source, target) for source in aliases for target in aliases if source != target]
    enabled = [pair for pair in pairs if read.flag(f"{pair[0]}->{pair[1]}.enabled", default=False)]
    if not enabled:
        raise InvalidSettingError(
            key="clusters",
            problem="no replication flow is enabled",
            action="set A->B.enabled=true for one of them",
        )
    for key in sorted(raw):
        if _PROCESS.match(key):
            findings.add_loss(
                "", key, "it belongs to a process, which `mirrorflow run` or the operator starts"
            )
        elif _is_dropped(key):
            findings.add_loss("", key, "it has no effect at the top level, as in MM2")
    emits = read.flag(_HEARTBEATS, default=True)
    heartbeat_pairs = [
        pair for pair in pairs if read.flag(f"{pair[0]}->{pair[1]}.{_HEARTBEATS}", default=emits)
    ]
    alone = [pair for pair in heartbeat_pairs if pair not in enabled and pair[::-1] not in enabled]
    if alone:
        findings.add_loss(
            "",
            _HEARTBEATS,
            "MM2 also emits heartbeats between clusters without a flow, and a MirrorFlow does not: "
            + ", ".join(f"{source}->{target}" for source, target in alone),
        )
    flows = []
    for source, target in enabled:
        own = connector_properties({**raw, **registries}, source, target, CLASS_NAMES[SCHEMAS])
        schemas = converted_schemas(own, source, target, findings)
        flow = _flow(raw, source, target, enabled, heartbeat_pairs, findings)
        flows.append(replace(flow, schemas=schemas))
    idle = set(aliases) - {alias for pair in enabled for alias in pair}
    for key in sorted(registries):
        if key.startswith(tuple(f"{alias}." for alias in idle)):
            findings.add_loss("", key, "no enabled flow has this cluster")
    return flows


def _note_warnings(text: str, findings: ConversionFindings) -> None:
    """Lists the settings that the reader ignores. Raises InvalidSettingError for unreadable text."""
    try:
        warnings = load_mm2(text)[0].warnings
    except RefusedSettingError:
        return  # The conversion finds it again, together with all other refused settings.
    for warning in warnings:
        key, _, why = warning.partition(": ")
        if " " not in key and _NO_EFFECT.search(why):
            findings.add_loss("", key, why)


def _is_dropped(key: str) -> bool:
    """Returns whether MM2 honours *key* for a flow only; at the top level the reader ignores it silently."""
    row = setting_table.find(key, (Scope.CONNECTOR,))
    return row is not None and row.verdict is Verdict.MAPPED and not row.top_level


def _flow(
    raw: Mapping[str, str],
    source: str,
    target: str,
    enabled: list[tuple[str, str]],
    heartbeat_pairs: list[tuple[str, str]],
    findings: ConversionFindings,
) -> JavaFlow:
    name = f"{source}->{target}"
    derived = {
        kind: connector_properties(raw, source, target, connector) for kind, connector in CLASS_NAMES.items()
    }
    sides = derived[HEARTBEAT].get(_EMIT_TO, "target").replace(" ", "").split(",")
    emit_to = [side.capitalize() for side in sides if side] if (source, target) in heartbeat_pairs else []
    # The heartbeats of the opposite direction are the ones that this flow emits on its source.
    if (target, source) in heartbeat_pairs and (target, source) not in enabled and "Source" not in emit_to:
        emit_to.append("Source")
        _note_other_heartbeats(raw, source, target, derived[HEARTBEAT], findings)
    plain_worker = worker_properties({}, source, target)
    worker = {
        key: value
        for key, value in worker_properties(raw, source, target).items()
        if not _PROCESS.match(key) and not (key in _NAMES_WITHOUT_EFFECT and plain_worker[key] == value)
    }
    # A flow may set its own alias for a cluster; names and stored offsets use that alias.
    source, target = (derived[SOURCE][f"{side}.cluster.alias"].strip() for side in ("source", "target"))
    return JavaFlow(
        source=_cluster(derived[SOURCE], "source", source, name, findings),
        target=_cluster(derived[SOURCE], "target", target, name, findings),
        worker=worker,
        connectors={
            kind: {
                key: value
                for key, value in properties.items()
                if not _SIDE.match(key) and key != _HEARTBEATS and not clients.is_shared(key)
            }
            for kind, properties in derived.items()
        },
        emit_to=emit_to,
        claim=derived[SOURCE].get("mirrorflow.flow", f"{source}->{target}"),
    )


def _note_other_heartbeats(
    raw: Mapping[str, str], source: str, target: str, ours: Mapping[str, str], findings: ConversionFindings
) -> None:
    """Lists differing heartbeat settings of the other direction: a MirrorFlow has one set for both sides."""
    theirs = connector_properties(raw, target, source, CLASS_NAMES[HEARTBEAT])
    for key, default in (
        ("emit.heartbeats.interval.seconds", "1"),
        ("heartbeats.topic.replication.factor", "3"),
    ):
        if theirs.get(key, default) != ours.get(key, default):
            why = f"the heartbeats on {source} become those of {source}->{target}, whose setting applies to both sides"
            findings.add_loss(f"{target}->{source}", key, why)


def _cluster(
    properties: Mapping[str, str], side: str, alias: str, flow: str, findings: ConversionFindings
) -> JavaCluster:
    """Returns one side, from the derived properties of a connector."""
    shared = clients.shared(clients.with_prefix(properties, f"{side}.cluster."))
    addresses = read_list(shared.pop("bootstrap.servers", ""))
    security = ConvertedSecurity(shared, alias=alias, flow=flow, findings=findings)
    own: dict[str, str] = {}
    for kind in CLIENT_KINDS:
        for key, value in clients.with_prefix(properties, f"{side}.{kind}").items():
            if not clients.is_shared(key):
                own[kind + key] = value
            elif value != properties.get(f"{side}.cluster.{key}"):
                why = "a single client cannot use another connection than its cluster's"
                findings.add_loss(flow, f"{alias}.{kind}{key}", why)
    return JavaCluster(
        document={
            "alias": alias,
            "bootstrapServers": [_ADDRESS_SCHEME.sub("", address) for address in addresses],
            **security.document(),
        },
        clients=own,
    )


def _resolved(raw: Mapping[str, str], findings: ConversionFindings) -> dict[str, str]:
    """Returns *raw* with references resolved, except in secrets; lists and drops unresolvable settings.

    Raises UsageError for an unresolvable setting without which the flow would be another.
    """
    resolver = Resolver(raw)
    out: dict[str, str] = {}
    for key, value in raw.items():
        if _SECRET.fullmatch(key) or key.startswith(PROVIDERS_KEY):
            out[key] = value
            continue
        if key.endswith(tuple(f".{name}" for name in _REQUIRED)) or key in _REQUIRED:
            try:
                out[key] = resolver.resolve_required(key, value)
            except UnresolvedReferenceError as error:
                raise UsageError(
                    f"{error} Set it for this command too, or write the value into the file."
                ) from error
            continue
        out[key] = resolver.resolve_value(value)
        if has_reference(out[key]):
            findings.add_loss(
                "", key, f"{out[key]} cannot be resolved here; write the value into the MirrorFlow"
            )
            del out[key]
    return out


class ConvertedSecurity:
    """The security of one cluster of *flow*; `document()` returns its part of spec.source or spec.target."""

    def __init__(
        self, properties: Mapping[str, str], *, alias: str, flow: str, findings: ConversionFindings
    ) -> None:
        self._own = {key: value.strip() for key, value in properties.items()}
        self._alias = secret_prefix(alias)
        self._label = f"{alias}."
        self._flow = flow
        self._findings = findings
        self._protocol = (self._own.get("security.protocol") or "PLAINTEXT").upper()

    def document(self) -> dict[str, Any]:
        """Returns `tls` and `authentication`, each if present."""
        out: dict[str, Any] = {}
        if self._protocol not in {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}:
            self._add_loss("security.protocol", f"{self._protocol} is not a protocol", refused=True)
        if self._protocol.endswith("SSL"):
            out["tls"] = self._tls()
        authentication = self._authentication()
        if authentication:
            out["authentication"] = authentication
        return out

    def _tls(self) -> dict[str, Any]:
        tls: dict[str, Any] = {}
        where = self._own.get("ssl.truststore.location") or (
            "ssl.truststore.certificates" if self._own.get("ssl.truststore.certificates") else ""
        )
        if where:
            origin = f"the authorities of {self._label}{'' if where.startswith('ssl.') else 'ssl.truststore.location '}{where}, as PEM"
            tls["trustedCertificates"] = [self._findings.add_secret(f"{self._alias}-ca", "ca.crt", origin)]
        algorithm = self._own.get("ssl.endpoint.identification.algorithm")
        if algorithm == "":
            tls["verifyHostname"] = False
        return tls

    def _authentication(self) -> dict[str, Any] | None:
        sasl, tls = self._protocol.startswith("SASL"), self._protocol.endswith("SSL")
        keystore = tls and any(key.startswith(_KEYSTORE) and self._own[key] for key in self._own)
        mechanism = self._own.get("sasl.mechanism") or "GSSAPI"
        more = self._further_settings(sasl=sasl, tls=tls, oauth=mechanism in _TOKEN_MECHANISMS)
        if not sasl:
            if more:
                return self._custom(more, keystore=keystore, sasl=False)
            return self._client_certificate() if keystore else None
        if mechanism not in {*_MECHANISMS, *_TOKEN_MECHANISMS}:
            self._add_loss("sasl.mechanism", f"{mechanism} is not supported", refused=True)
            return None
        module = self._module()
        simple: dict[str, Any] | None = None
        if module is not None and names_cloud_identity(self._own):
            simple = self._cloud_identity(module, further=keystore or bool(more))
        elif module is not None and not keystore and not more:
            simple = self._oauth(module) if mechanism == "OAUTHBEARER" else self._password(module, mechanism)
        return simple or self._custom(more, keystore=keystore, sasl=True, module=module)

    def _further_settings(self, *, sasl: bool, tls: bool, oauth: bool) -> dict[str, str]:
        """Returns the settings that the named types cannot express; lists those that have no effect."""
        more: dict[str, str] = {}
        for key, value in self._own.items():
            if (
                key in _EXPRESSED
                or key.startswith((_TRUSTSTORE, *_KEYSTORE))
                or (oauth and key in _OAUTH_EXPRESSED)
            ):
                continue
            if (key.startswith("sasl.") and not sasl) or (key.startswith("ssl.") and not tls):
                self._add_loss(key, f"security.protocol is {self._protocol}, so it has no effect")
                continue
            treatment, why = verdict(key)
            if treatment == "refused" and value:
                self._add_loss(key, why, refused=True)
            elif treatment == "ignored":
                self._add_loss(key, why)
            elif value:
                more[key] = value
        return more

    def _client_certificate(self) -> dict[str, Any]:
        return {"type": "Tls", "certificateAndKey": {"secretName": self._keystore_secret()}}

    def _keystore_secret(self) -> str:
        name = f"{self._alias}-client"
        where = self._own.get("ssl.keystore.location", "")
        origin = f"{self._label}ssl.keystore.location {where}" if where else f"{self._label}ssl.keystore"
        self._findings.add_secret(name, "tls.crt", f"the certificate chain of {origin}, as PEM")
        self._findings.add_secret(
            name, "tls.key", f"the private key of {origin}, as PEM (PKCS #8, no password)"
        )
        return name

    def _module(self) -> LoginModule | None:
        """Returns the login module, with each reference replaced by a placeholder word.

        Java parses the login configuration after resolving references. Returns None if the text cannot be
        parsed.
        """
        text = self._own.get("sasl.jaas.config", "")
        if not text:
            return LoginModule(class_name="", options={})
        for index, reference in enumerate(references(text)):
            text = text.replace(reference.text, f"mirrorflowReference{index}x")
        try:
            module = parse_jaas(text)
        except InvalidSettingError:
            return None  # The whole text may be one reference, which Custom can hold.
        if self._own.get(LOGIN_HANDLER_KEY) == STRIMZI_HANDLER:
            return self._from_strimzi(module)
        return module

    def _from_strimzi(self, module: LoginModule) -> LoginModule:
        """Returns the login module of Kafka's own handler with the meaning of Strimzi's *module*, if it has one."""
        try:
            own, options = strimzi_login(self._own, module.options)
        except RefusedSettingError as error:
            self._add_loss(error.key, STRIMZI_GRANTS_REFUSED, refused=True)
            return module
        if own.get(f"{_OAUTH}assertion.file") or own.get(_OAUTH_ENDPOINT, "").startswith("file:"):
            return module  # type Custom has it as it is
        options |= {
            name: own.pop(key)
            for name, key in (
                ("clientId", _OAUTH_ID),
                ("clientSecret", _OAUTH_OF_CLIENT),
                ("scope", _OAUTH_SCOPE),
            )
            if key in own
        }
        self._own = own
        return LoginModule(class_name=module.class_name, options=options)

    def _password(self, module: LoginModule, mechanism: str) -> dict[str, Any] | None:
        kind = _MECHANISMS[mechanism]
        if module.class_name != _MODULES[kind] or {"username", "password"} != set(module.options):
            return None
        return {
            "type": kind,
            "username": self._text(module.options["username"], "username"),
            "password": self._secret(module.options["password"], "password"),
        }

    def _cloud_identity(self, module: LoginModule, *, further: bool) -> dict[str, Any] | None:
        """Returns the type of a cloud's identity, unless *further* settings, or its options, need type Custom. Lists options without effect."""
        for name in sorted(AWS_IGNORED_OPTIONS & module.options.keys()):
            self._add_loss(f"sasl.jaas.config (option {name})", "it has no effect")
        if module.options.get("awsProfileName"):
            self._add_loss("sasl.jaas.config (option awsProfileName)", PROFILES_REFUSED, refused=True)
        if (
            further
            or not self._protocol.endswith("SSL")
            or any(map(self._referenced, module.options.values()))
        ):
            return None
        login = {key: value for key, value in self._own.items() if key.startswith("sasl.")}
        return cloud_authentication(login, module.options)

    def _oauth(self, module: LoginModule) -> dict[str, Any] | None:
        options = {
            "clientId": self._own.get(_OAUTH_ID) or module.options.get("clientId"),
            "clientSecret": self._own.get(_OAUTH_OF_CLIENT) or module.options.get("clientSecret"),
        }
        endpoint = self._own.get(_OAUTH_ENDPOINT, "")
        if None in options.values() or not re.match(r"https?://\S+$", endpoint):
            return None
        if set(module.options) - {"clientId", "clientSecret", "scope"}:
            return None
        out = {
            "type": "OAuthBearer",
            "clientId": self._text(str(options["clientId"]), "client-id"),
            "clientSecret": self._secret(str(options["clientSecret"]), "client-secret"),
            "tokenEndpoint": endpoint,
        }
        scope = self._own.get(_OAUTH_SCOPE) or module.options.get("scope")
        return {**out, "scope": scope} if scope else out

    def _custom(
        self, more: Mapping[str, str], *, keystore: bool, sasl: bool, module: LoginModule | None = None
    ) -> dict[str, Any]:
        config = dict(more)
        if sasl:
            for key in ("sasl.mechanism", *sorted(_OAUTH_EXPRESSED)):
                if self._own.get(key):
                    config[key] = self._own[key]
            if self._own.get("sasl.jaas.config"):
                config["sasl.jaas.config"] = self._jaas(module)
        for key in config:
            if key.endswith((".secret", ".password", ".passphrase")):
                config[key] = self._reference(f"{self._alias}-mirror", key, f"{self._label}{key}")
        if keystore:
            name = self._keystore_secret()
            config["ssl.keystore.type"] = "PEM"
            config["ssl.keystore.certificate.chain"] = f"${{dir:{SECRETS_MOUNT}/{name}:tls.crt}}"
            config["ssl.keystore.key"] = f"${{dir:{SECRETS_MOUNT}/{name}:tls.key}}"
        return {"type": "Custom", "sasl": sasl, "config": config}

    def _jaas(self, module: LoginModule | None) -> str:
        """Returns the login configuration with a reference for each secret option.

        If it cannot be parsed, the whole configuration becomes one reference.
        """
        secret = f"{self._alias}-mirror"
        if module is None or not module.class_name:
            return self._reference(secret, "sasl.jaas.config", f"{self._label}sasl.jaas.config")
        written = []
        for name, value in module.options.items():
            is_secret = _SECRET_OPTION.fullmatch(name) is not None or name in AWS_SECRET_OPTIONS
            if is_secret or self._referenced(value):
                shown = self._reference(secret, name, self._origin(value, name))
            else:
                shown = value.replace("\\", "\\\\").replace('"', '\\"')
            written.append(f'{name}="{shown}"')
        return f"{module.class_name} required " + " ".join(written) + ";"

    def _text(self, value: str, key: str) -> dict[str, str]:
        if not self._referenced(value):
            return {"value": value}
        return self._findings.add_secret(f"{self._alias}-mirror", key, self._origin(value, key))

    def _secret(self, value: str, key: str) -> dict[str, str]:
        return self._findings.add_secret(f"{self._alias}-mirror", key, self._origin(value, key))

    def _reference(self, secret: str, key: str, origin: str) -> str:
        self._findings.add_secret(secret, key, origin)
        return f"${{dir:{SECRETS_MOUNT}/{secret}:{key}}}"

    def _referenced(self, value: str) -> bool:
        return has_reference(value) or _PLACEHOLDER.search(value) is not None

    def _origin(self, value: str, option: str) -> str:
        """Returns where a secret is stored now: the original reference, or the property."""
        match = _PLACEHOLDER.fullmatch(value)
        if match:
            return references(self._own["sasl.jaas.config"])[int(match.group(1))].text
        if has_reference(value):
            return value
        return f"option {option} of {self._label}sasl.jaas.config"

    def _add_loss(self, key: str, why: str, *, refused: bool = False) -> None:
        self._findings.add_loss(self._flow, f"{self._label}{key}", why, refused=refused)
