"""Plans the properties of a MirrorFlow's worker and connectors, as a KIP-304 standalone process reads them, field by field.

Pure and total for a valid flow: the same flow gives the same bytes, in a fixed order. Keys are MM2's and Connect's;
MirrorFlow's own begin with `mirrorflow.`. The source connector keeps MM2's name, because that name is part of the key of
every stored offset: so Java MM2 continues where MirrorFlow stopped, and the other way round.

Source for names and defaults: Kafka's MirrorConnectorConfig, MirrorSourceConfig, MirrorCheckpointConfig,
MirrorHeartbeatConfig and KIP-304. Exclude lists also contain MM2's defaults where the field always excludes
internal names. Every secret is a reference, also inside `sasl.jaas.config`. All certificates are PEM (KIP-651),
so a Secret of cert-manager, Strimzi or `kubectl create secret tls` works unchanged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mirrorflow_core.java.cloud_logins import AWS_HANDLER, AZURE_HANDLER, GCP_HANDLER, OAUTH_MODULE, SCOPE_KEY
from mirrorflow_core.java.jaas import escape_option, format_jaas
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.replication_policy import worker_topic
from mirrorflow_core.settings import (
    CONFIG_EXCLUDE,
    GROUPS_EXCLUDE,
    REGISTRY_PREFIX,
    SCHEMA_WAIT_MAX,
    SCHEMA_WAIT_TOPICS,
    TOPICS_EXCLUDE,
)
from mirrorflow_operator.api.model import rounded_up
from mirrorflow_operator.api.spec import (
    Authentication,
    AuthenticationType,
    ClusterSpec,
    InitialPosition,
    IsolationLevel,
    MirrorFlow,
    NamingPolicy,
    SchemaRegistry,
    SecretKey,
    Spec,
    StartFrom,
    State,
    SyncMode,
    TextSource,
    TopicConfigException,
    TrustedCertificate,
)
from mirrorflow_operator.api.workloads import KEYS_OF_WORKER, ConnectorKind

PROVIDER = "dir"
FILE_PROVIDER = "file"
STATE_KEY = "mirrorflow.state"
CLIENT_ROLES = ("consumer", "producer", "admin")
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MECHANISMS: Mapping[AuthenticationType, tuple[str, str]] = {
    AuthenticationType.PLAIN: ("PLAIN", _PLAIN_MODULE),
    AuthenticationType.SCRAM_SHA_256: ("SCRAM-SHA-256", _SCRAM_MODULE),
    AuthenticationType.SCRAM_SHA_512: ("SCRAM-SHA-512", _SCRAM_MODULE),
}
_DIRECTORY_PROVIDER = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"
_FILE_PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"
_POLICY_CLASSES = {
    NamingPolicy.PREFIX: "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
    NamingPolicy.IDENTITY: "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
}
_NAMING_KEYS = {"transforms", "predicates"}
CONNECTOR_PACKAGE = "org.apache.kafka.connect.mirror."
_GROUPS_WITHOUT_OFFSET_SYNCS = (
    "Consumer groups are not translated: emit.offset-syncs.enabled=false in spec.connectors.source.config, and"
    " MirrorCheckpointConnector translates by offset syncs."
)
_TRUE, _FALSE = "true", "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretLayout:
    """The folders of Secrets and ConfigMaps, absolute paths with `/`.

    Files are at `<secrets>/<secretName>/<key>` and `<config_maps>/<configMapName>/<key>`.
    *reads_files*: properties may also refer to keys of properties files, as `${file:<path>:<key>}`.
    """

    secrets: str
    config_maps: str
    reads_files: bool = False

    def secret_reference(self, name: str, key: str) -> str:
        """Returns a reference to a whole file; the process resolves it (Java's DirectoryConfigProvider)."""
        return f"${{{PROVIDER}:{self.secrets}/{name}:{key}}}"

    def config_map_reference(self, name: str, key: str) -> str:
        """Returns a reference as `secret_reference` does, for a ConfigMap."""
        return f"${{{PROVIDER}:{self.config_maps}/{name}:{key}}}"

    def secret_path(self, name: str, key: str) -> str:
        return f"{self.secrets}/{name}/{key}"

    def config_map_path(self, name: str, key: str) -> str:
        return f"{self.config_maps}/{name}/{key}"


POD_LAYOUT = SecretLayout(secrets="/mnt/mirrorflow/secrets", config_maps="/mnt/mirrorflow/config-maps")


def cluster_properties(side: str, cluster: ClusterSpec, layout: SecretLayout) -> dict[str, str]:
    """Returns the connection properties of one cluster; *side* is source or target."""
    connection = {
        "bootstrap.servers": ",".join(cluster.bootstrap_servers),
        **security_properties(cluster, layout),
    }
    return {
        f"{side}.cluster.alias": cluster.alias,
        **{f"{side}.cluster.{key}": value for key, value in connection.items()},
        **client_config(cluster, f"{side}."),
    }


def client_config(cluster: ClusterSpec, prefix: str) -> dict[str, str]:
    """Returns the cluster's `config`; MM2 accepts such keys only with a client role as their prefix."""
    roles = tuple(f"{role}." for role in CLIENT_ROLES)
    return {
        prefix + role + key: value
        for key, value in cluster.config.items()
        for role in (("",) if key.startswith(roles) else roles)
    }


def security_properties(cluster: ClusterSpec, layout: SecretLayout) -> dict[str, str]:
    """Returns `security.protocol` and what it needs; empty for plain text without authentication."""
    encrypted = cluster.tls is not None
    sasl = _is_sasl(cluster.authentication)
    if not encrypted and cluster.authentication is None:
        return {}
    protocol = ("SASL_" if sasl else "") + ("SSL" if encrypted else "PLAINTEXT")
    properties = {"security.protocol": protocol}
    if cluster.tls is not None:
        properties |= _trust(cluster.tls.trusted_certificates, layout)
        if not cluster.tls.verify_hostname:
            properties["ssl.endpoint.identification.algorithm"] = ""
    if cluster.authentication is not None:
        properties |= _authentication_properties(cluster.authentication, layout)
    return properties


def _is_sasl(authentication: Authentication | None) -> bool:
    if authentication is None or authentication.type is AuthenticationType.TLS:
        return False
    return authentication.type is not AuthenticationType.CUSTOM or authentication.sasl


def _trust(certificates: tuple[TrustedCertificate, ...], layout: SecretLayout) -> dict[str, str]:
    if not certificates:
        return {}
    if len(certificates) == 1:
        return {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": _trusted_path(certificates[0], layout),
        }
    # A truststore is one file or one text, so several files become one text, separated by line breaks.
    texts = [_trusted_reference(certificate, layout) for certificate in certificates]
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "\n".join(texts)}


def _trusted_path(certificate: TrustedCertificate, layout: SecretLayout) -> str:
    if certificate.secret_name is not None:
        return layout.secret_path(certificate.secret_name, certificate.key)
    return layout.config_map_path(certificate.config_map_name or "", certificate.key)


def _trusted_reference(certificate: TrustedCertificate, layout: SecretLayout) -> str:
    if certificate.secret_name is not None:
        return layout.secret_reference(certificate.secret_name, certificate.key)
    return layout.config_map_reference(certificate.config_map_name or "", certificate.key)


def _authentication_properties(authentication: Authentication, layout: SecretLayout) -> dict[str, str]:
    """Returns the `sasl.*` or `ssl.keystore.*` properties of this type of authentication."""
    match authentication.type:
        case AuthenticationType.TLS:
            return _keystore(authentication, layout)
        case AuthenticationType.CUSTOM:
            return dict(authentication.config)
        case AuthenticationType.OAUTH_BEARER:
            return _oauth(authentication, layout)
        case AuthenticationType.AWS_IAM:
            return _aws_iam(authentication)
        case AuthenticationType.GCP_WORKLOAD_IDENTITY:
            return _login_by(GCP_HANDLER, {})
        case AuthenticationType.AZURE_WORKLOAD_IDENTITY:
            scope = authentication.scope
            return _login_by(AZURE_HANDLER, {}) | ({} if scope is None else {SCOPE_KEY: scope})
        case _:
            mechanism, module = _MECHANISMS[authentication.type]
            options = {
                "username": _text(authentication.username, layout),
                "password": _secret(authentication.password, layout),
            }
            return {"sasl.mechanism": mechanism, "sasl.jaas.config": format_jaas(module, options)}


def _keystore(authentication: Authentication, layout: SecretLayout) -> dict[str, str]:
    pair = authentication.certificate_and_key
    if pair is None:
        return {}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": layout.secret_reference(pair.secret_name, pair.certificate),
        "ssl.keystore.key": layout.secret_reference(pair.secret_name, pair.key),
    }


def _oauth(authentication: Authentication, layout: SecretLayout) -> dict[str, str]:
    options = {"clientId": _text(authentication.client_id, layout)}
    assertion = authentication.client_assertion
    if assertion is None:
        options["clientSecret"] = _secret(authentication.client_secret, layout)
    if authentication.scope is not None:
        options["scope"] = escape_option(authentication.scope)
    return {
        **_login_by(_OAUTH_HANDLER, options),
        "sasl.oauthbearer.token.endpoint.url": authentication.token_endpoint or "",
        **({} if assertion is None else {"sasl.oauthbearer.assertion.file": assertion.file}),
    }


def _login_by(handler: str, options: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties of OAUTHBEARER with Java's class *handler*."""
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": handler,
        "sasl.jaas.config": format_jaas(OAUTH_MODULE, options),
    }


def _aws_iam(authentication: Authentication) -> dict[str, str]:
    """Returns the properties of aws-msk-iam-auth; `awsRegion` is MirrorFlow's own option."""
    options = {"awsRegion": authentication.region, "awsRoleArn": authentication.role_arn}
    return _login_by(AWS_HANDLER, {name: value for name, value in options.items() if value is not None})


def _text(source: TextSource | None, layout: SecretLayout) -> str:
    if source is None:
        return ""
    if source.value is not None:
        return escape_option(source.value)
    return layout.secret_reference(source.secret_name or "", source.key or "")


def _secret(secret: SecretKey | None, layout: SecretLayout) -> str:
    return "" if secret is None else layout.secret_reference(secret.secret_name, secret.key)


def worker_properties(flow: MirrorFlow, layout: SecretLayout) -> dict[str, str]:
    """Returns the worker's properties: the target, the offset storage, and config providers for secrets."""
    spec = flow.spec
    return {
        **_providers(layout),
        "bootstrap.servers": ",".join(spec.target.bootstrap_servers),
        **security_properties(spec.target, layout),
        **client_config(spec.target, ""),
        # The name in MM2's dedicated mode, so that quotas and dashboards by client id keep working.
        "client.id": f"{spec.source.alias}->{spec.target.alias}",
        "group.id": f"{spec.source.alias}-mm2",
        "offset.storage.store": "kafka",
        "offset.storage.topic": worker_topic("offsets", spec.source.alias),
        "offset.storage.replication.factor": str(spec.topics.replication_factor),
    }


def worker_config(config: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of a connector's `config` that are for its worker."""
    return {key: value for key, value in config.items() if key.startswith(KEYS_OF_WORKER)}


def connector_config(config: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of a connector's `config` that are for the connector."""
    return {key: value for key, value in config.items() if not key.startswith(KEYS_OF_WORKER)}


def without_unused_offset_syncs(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns *properties* without `offset-syncs.*` if offset syncs are disabled: MM2 refuses both."""
    silent = disables_offset_syncs(properties)
    return {
        key: value for key, value in properties.items() if not (silent and key.startswith("offset-syncs."))
    }


def disables_offset_syncs(config: Mapping[str, str]) -> bool:
    """Returns whether *config* disables offset syncs."""
    return config.get("emit.offset-syncs.enabled", "true").strip().lower() == "false"


def shared_properties(flow: MirrorFlow, layout: SecretLayout, flow_id: str) -> dict[str, str]:
    """Returns the properties of all connectors: the flow's id, both clusters and the naming policy."""
    spec = flow.spec
    return {
        "mirrorflow.flow": flow_id,
        **({STATE_KEY: "paused"} if spec.state is State.PAUSED else {}),
        **_providers(layout),
        **cluster_properties("source", spec.source, layout),
        **cluster_properties("target", spec.target, layout),
        "replication.policy.class": _POLICY_CLASSES[spec.topics.naming.policy],
        "replication.policy.separator": spec.topics.naming.separator,
        # Set on the source connector, valid for the flow: a connector with other naming finds no topics.
        **{
            key: value
            for key, value in spec.connectors.source.config.items()
            if key.startswith("replication.policy.")
        },
    }


def source_properties(spec: Spec) -> dict[str, str]:
    topics = spec.topics
    properties = {
        "topics": ",".join(topics.include),
        "topics.exclude": ",".join((*topics.exclude, *TOPICS_EXCLUDE)),
        "replication.factor": str(topics.replication_factor),
        "sync.topic.configs.enabled": _flag(topics.configs.sync is not SyncMode.OFF),
        "config.properties.exclude": ",".join((*topics.configs.exclude, *CONFIG_EXCLUDE)),
        "sync.topic.acls.enabled": _flag(topics.acls.sync is not SyncMode.OFF),
        "mirrorflow.start.from": _start_from(topics.start_from),
        "mirrorflow.source.loss.policy": topics.on_source_loss.value.lower(),
        "offset-syncs.topic.location": spec.offset_syncs.location.value.lower(),
        "offset-syncs.topic.replication.factor": str(topics.replication_factor),
    }
    if spec.take_over_from:
        properties["mirrorflow.takeover.from"] = ",".join(spec.take_over_from)
    if topics.configs.exceptions:
        properties["mirrorflow.config.properties.exclude.by.topic"] = _pairs(topics.configs.exceptions)
    if topics.configs.sync is SyncMode.REPORT:
        properties["mirrorflow.sync.topic.configs.report.only"] = _TRUE
    if topics.acls.sync is SyncMode.REPORT:
        properties["mirrorflow.sync.topic.acls.report.only"] = _TRUE
    if spec.isolation_level is IsolationLevel.READ_COMMITTED:
        properties["source.consumer.isolation.level"] = "read_committed"
    if spec.limits.bytes_per_second is not None:
        # A plain number, because the replicator's properties accept fewer units than Kubernetes.
        properties["mirrorflow.bytes.per.second"] = str(rounded_up(spec.limits.bytes_per_second))
    return properties


def checkpoint_properties(spec: Spec) -> dict[str, str]:
    return {
        "topics": ",".join(spec.topics.include),
        "topics.exclude": ",".join((*spec.topics.exclude, *TOPICS_EXCLUDE)),
        "groups": ",".join(spec.groups.include),
        "groups.exclude": ",".join((*spec.groups.exclude, *GROUPS_EXCLUDE)),
        "sync.group.offsets.enabled": _flag(spec.groups.sync_offsets),
        "offset-syncs.topic.location": spec.offset_syncs.location.value.lower(),
        "checkpoints.topic.replication.factor": str(spec.topics.replication_factor),
        # It must know the names that the source connector gives to the copies.
        **{
            key: value
            for key, value in spec.connectors.source.config.items()
            if key.partition(".")[0] in _NAMING_KEYS
        },
    }


def heartbeat_properties(spec: Spec) -> dict[str, str]:
    return {
        "emit.heartbeats.enabled": _flag(bool(spec.heartbeats.emit_to)),
        "mirrorflow.heartbeats.emit.to": ",".join(side.value.lower() for side in spec.heartbeats.emit_to),
        "heartbeats.topic.replication.factor": str(spec.topics.replication_factor),
    }


def schema_properties(spec: Spec, layout: SecretLayout) -> dict[str, str]:
    """Returns the properties of the schema connector; empty for a flow without registries."""
    schemas = spec.schemas
    if schemas is None:
        return {}
    pairs = (f"{context.source}:{context.target}" for context in schemas.contexts)
    return {
        **_registry_properties("source", schemas.source, layout),
        **_registry_properties("target", schemas.target, layout),
        "mirrorflow.schemas.subjects": ",".join(schemas.subjects),
        **({"mirrorflow.schemas.contexts": ",".join(pairs)} if schemas.contexts else {}),
        **({"mirrorflow.schemas.subject.prefix": schemas.subject_prefix} if schemas.subject_prefix else {}),
    }


def schema_wait_properties(spec: Spec, layout: SecretLayout) -> dict[str, str]:
    """Returns the properties by which the source connector waits for schemas; empty if no topic waits."""
    schemas = spec.schemas
    if schemas is None or not schemas.waiting_topics:
        return {}
    return {
        **schema_properties(spec, layout),
        SCHEMA_WAIT_TOPICS: ",".join(schemas.waiting_topics),
        SCHEMA_WAIT_MAX: str(1000 * schemas.max_wait_seconds),
    }


def _registry_properties(side: str, registry: SchemaRegistry, layout: SecretLayout) -> dict[str, str]:
    properties = {"url": registry.url}
    if registry.tls is not None:
        properties |= _trust(registry.tls.trusted_certificates, layout)
        if not registry.tls.verify_hostname:
            properties["ssl.endpoint.identification.algorithm"] = ""
    authentication = registry.authentication
    if authentication is not None and authentication.username is not None:
        user = authentication.username
        # Unlike in a JAAS text, nothing is escaped.
        name = _text(user, layout) if user.value is None else user.value
        properties["basic.auth.user.info"] = f"{name}:{_secret(authentication.password, layout)}"
    if authentication is not None and authentication.token is not None:
        properties["bearer.auth.token"] = _secret(authentication.token, layout)
    return {f"{side}.cluster.{REGISTRY_PREFIX}{key}": value for key, value in properties.items()}


def _providers(layout: SecretLayout) -> dict[str, str]:
    classes = {PROVIDER: _DIRECTORY_PROVIDER} | (
        {FILE_PROVIDER: _FILE_PROVIDER} if layout.reads_files else {}
    )
    return {
        "config.providers": ",".join(classes),
        **{f"config.providers.{name}.class": class_ for name, class_ in classes.items()},
    }


def _pairs(exceptions: Iterable[TopicConfigException]) -> str:
    """Returns each topic with each setting, as `topic:setting`; neither has a colon other than in `(?:`."""
    return ",".join(
        f"{topics}:{settings}"
        for exception in exceptions
        for topics in exception.topics
        for settings in exception.exclude
    )


def _start_from(start: StartFrom) -> str:
    if start.position is InitialPosition.TIMESTAMP:
        return f"timestamp:{start.timestamp}"
    return str(start.position.value).lower()


def _flag(value: bool) -> str:  # noqa: FBT001  one argument, one meaning
    return _TRUE if value else _FALSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorPlan:
    """One connector: the worker's and the connector's properties."""

    name: str
    kind: ConnectorKind
    worker_properties: Mapping[str, str]
    connector_properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The connectors of a flow, source first; `notes` name parts of the spec without effect."""

    flow: str
    connectors: tuple[ConnectorPlan, ...]
    notes: tuple[str, ...] = ()


def plan(flow: MirrorFlow, secrets: SecretLayout, *, flow_id: str = "") -> Plan:
    """Returns the connectors of *flow* that have work; *flow* has passed `api.rules`.

    *flow_id* is the id with which it claims its source alias on the target; "": its name.
    """
    all_connectors = plan_all(flow, secrets, flow_id=flow_id)
    active = active_kinds(flow)
    silent = disables_offset_syncs(flow.spec.connectors.source.config)
    return replace(
        all_connectors,
        connectors=tuple(connector for connector in all_connectors.connectors if connector.kind in active),
        notes=(_GROUPS_WITHOUT_OFFSET_SYNCS,) if flow.spec.groups.include and silent else (),
    )


def active_kinds(flow: MirrorFlow) -> tuple[ConnectorKind, ...]:
    """Returns the connectors of *flow* that have work."""
    spec = flow.spec
    kinds = [ConnectorKind.SOURCE]
    if spec.groups.include and not disables_offset_syncs(spec.connectors.source.config):
        kinds.append(ConnectorKind.CHECKPOINT)
    if spec.heartbeats.emit_to:
        kinds.append(ConnectorKind.HEARTBEAT)
    if spec.schemas is not None:
        kinds.append(ConnectorKind.SCHEMAS)
    return tuple(kinds)


def connector_names(flow: MirrorFlow) -> dict[ConnectorKind, str]:
    """Returns the name that each connector has in its process; `config` may set another one."""
    named = flow.spec.connectors.named
    return {kind: named(kind).config.get("name", kind.java_class) for kind in ConnectorKind}


def plan_all(flow: MirrorFlow, secrets: SecretLayout, *, flow_id: str = "") -> Plan:
    """Returns the plan of all connectors, also of those without work."""
    worker = worker_properties(flow, secrets)
    shared = shared_properties(flow, secrets, flow_id or flow.metadata.name)
    own = {
        ConnectorKind.SOURCE: {
            **source_properties(flow.spec),
            **schema_wait_properties(flow.spec, secrets),
        },
        ConnectorKind.CHECKPOINT: checkpoint_properties(flow.spec),
        ConnectorKind.HEARTBEAT: heartbeat_properties(flow.spec),
        ConnectorKind.SCHEMAS: schema_properties(flow.spec, secrets),
    }
    connectors = flow.spec.connectors
    return Plan(
        flow=flow.metadata.name,
        connectors=tuple(
            ConnectorPlan(
                name=kind.java_class,
                kind=kind,
                worker_properties=worker | worker_config(connectors.named(connectors.host(kind)).config),
                connector_properties=without_unused_offset_syncs(
                    {
                        "name": kind.java_class,
                        "connector.class": CONNECTOR_PACKAGE + kind.java_class,
                        "tasks.max": str(connectors.named(kind).tasks),
                        **shared,
                        **own[kind],
                        **connector_config(connectors.named(kind).config),
                    }
                ),
            )
            for kind in ConnectorKind
        ),
    )
