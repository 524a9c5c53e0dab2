"""Converts Strimzi's KafkaMirrorMaker2, in both API versions, to MirrorFlows with Strimzi's connector and topic names."""

import json
import textwrap
from typing import Any

import pytest
import yaml

from mirrorflow_cli.commands.convert import converted, report
from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.java_flow import ConversionFindings
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT

V1BETA2 = """
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaMirrorMaker2
metadata: {name: my-mirror-maker-2, namespace: kafka}
spec:
  version: 4.0.0
  replicas: 3
  connectCluster: cluster-b
  clusters:
    - alias: cluster-a
      bootstrapServers: cluster-a-kafka-bootstrap:9093
      tls: {trustedCertificates: [{secretName: cluster-a-cluster-ca-cert, pattern: "*.crt"}]}
      authentication:
        type: scram-sha-512
        username: mirror
        passwordSecret: {secretName: mirror-a, password: password}
    - alias: cluster-b
      bootstrapServers: cluster-b-kafka-bootstrap:9093
      tls: {trustedCertificates: [{secretName: cluster-b-cluster-ca-cert, certificate: ca.crt}]}
      authentication:
        type: tls
        certificateAndKey: {secretName: mirror-b, certificate: user.crt, key: user.key}
      config:
        config.storage.replication.factor: -1
        offset.storage.replication.factor: -1
        status.storage.replication.factor: -1
        producer.compression.type: zstd
  mirrors:
    - sourceCluster: cluster-a
      targetCluster: cluster-b
      sourceConnector:
        tasksMax: 4
        autoRestart: {enabled: true}
        config:
          replication.factor: -1
          offset-syncs.topic.replication.factor: -1
          sync.topic.acls.enabled: "false"
          refresh.topics.interval.seconds: 60
          consumer.max.poll.records: 2000
          metric.reporters: com.example.Reporter
      checkpointConnector:
        tasksMax: 2
        config:
          checkpoints.topic.replication.factor: -1
          sync.group.offsets.enabled: true
      heartbeatConnector:
        config: {heartbeats.topic.replication.factor: -1}
      topicsPattern: "orders.*|payments"
      topicsExcludePattern: 'secret.*'
      groupsPattern: ".*"
"""
V1 = """
apiVersion: kafka.strimzi.io/v1
kind: KafkaMirrorMaker2
metadata: {name: my-mirror-maker-2}
spec:
  target:
    alias: cluster-b
    bootstrapServers: cluster-b-kafka-bootstrap:9092
    groupId: my-group
    configStorageTopic: my-configs
    offsetStorageTopic: my-offsets
    statusStorageTopic: my-status
    authentication:
      type: custom
      sasl: true
      config:
        sasl.mechanism: PLAIN
        sasl.jaas.config: >-
          org.apache.kafka.common.security.plain.PlainLoginModule required
          username="a" password="${strimzisecrets:kafka/mirror-b:password}";
  mirrors:
    - source: {alias: cluster-a, bootstrapServers: "a-0:9092, a-1:9092"}
      sourceConnector:
        state: paused
        config: {replication.policy.class: org.apache.kafka.connect.mirror.IdentityReplicationPolicy}
    - source: {alias: cluster-c, bootstrapServers: "c:9092"}
      sourceConnector: {}
      checkpointConnector: {}
"""


def test_a_v1beta2_resource_becomes_a_flow_with_the_same_secrets_and_names() -> None:
    """The resource has every part of Strimzi's example, and security on both clusters."""
    findings = ConversionFindings()

    flow = parse_flow(converted(V1BETA2, findings)[0])

    spec = flow.spec
    assert "cluster-a-to-cluster-b" == flow.metadata.name
    assert spec.source.authentication is not None
    assert spec.source.authentication.password is not None
    assert ("mirror-a", "password") == (
        spec.source.authentication.password.secret_name,
        spec.source.authentication.password.key,
    )
    assert spec.target.authentication is not None
    assert spec.target.authentication.certificate_and_key is not None
    assert "user.crt" == spec.target.authentication.certificate_and_key.certificate
    assert (("orders.*|payments",), ("secret.*",), -1) == (
        spec.topics.include,
        spec.topics.exclude,
        spec.topics.replication_factor,
    )
    assert (4, 2, True) == (
        spec.connectors.source.tasks,
        spec.connectors.checkpoint.tasks,
        spec.groups.sync_offsets,
    )
    assert ["Target"] == [side.value for side in spec.heartbeats.emit_to]
    assert set() == findings.secrets


def test_a_converted_flow_keeps_the_keys_of_offsets_stored_by_strimzi() -> None:
    """Stored offsets are found by connector name and offsets topic."""
    connector = plan(parse_flow(converted(V1BETA2, ConversionFindings())[0]), POD_LAYOUT).connectors[0]

    assert "cluster-a->cluster-b.MirrorSourceConnector" == connector.connector_properties["name"]
    assert "mirrormaker2-cluster-offsets" == connector.worker_properties["offset.storage.topic"]
    assert "mirrormaker2-cluster" == connector.worker_properties["group.id"]
    assert "zstd" == connector.worker_properties["producer.compression.type"]
    assert {"refresh.topics.interval.seconds": "60", "consumer.max.poll.records": "2000"}.items() <= (
        connector.connector_properties.items()
    )


def test_fields_and_settings_without_a_counterpart_are_listed() -> None:
    findings = ConversionFindings()
    converted(V1BETA2, findings)

    assert {
        "spec.version",
        "cluster-a: tls.trustedCertificates[cluster-a-cluster-ca-cert].pattern *.crt",
        "spec.mirrors[0].sourceConnector.autoRestart",
        "topics.exclude",
        "config.storage.replication.factor",
        "status.storage.replication.factor",
        "metric.reporters",
    } == {loss.setting for loss in findings.losses}


def test_a_v1_resource_becomes_one_flow_per_source() -> None:
    """Topic names come from the resource.

    A paused source connector pauses the flow. Connectors that the resource omits are not added.
    """
    first, second = (parse_flow(document) for document in converted(V1, ConversionFindings()))

    assert ("Paused", "Running") == (first.spec.state.value, second.spec.state.value)
    assert ("Identity", "Prefix") == (
        first.spec.topics.naming.policy.value,
        second.spec.topics.naming.policy.value,
    )
    assert ("a-0:9092", "a-1:9092") == first.spec.source.bootstrap_servers
    assert ((), "false") == (
        first.spec.heartbeats.emit_to,
        first.spec.connectors.checkpoint.config["enabled"],
    )
    assert "my-offsets" == second.spec.connectors.source.config["offset.storage.topic"]
    assert first.spec.target.authentication is not None
    assert (
        'password="${dir:/mnt/mirrorflow/secrets/mirror-b:password}"'
        in (first.spec.target.authentication.config["sasl.jaas.config"])
    )


def test_documents_of_other_kinds_are_ignored() -> None:
    """Files with several objects are common."""
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\n---\n{V1BETA2}\n---\n{V1}"

    assert 3 == len(converted(text, ConversionFindings()))


LISTED = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(V1BETA2)]})


@pytest.mark.parametrize(
    "text",
    [
        LISTED,
        json.dumps(yaml.safe_load(V1BETA2)),
        json.dumps(yaml.safe_load(LISTED), indent=4),
        textwrap.indent(V1BETA2, "      "),
        f"# from the cluster\n---\n{textwrap.indent(V1BETA2, '  ')}",
        V1BETA2.replace("kind: KafkaMirrorMaker2", '"kind" : "KafkaMirrorMaker2"'),
    ],
    ids=["list", "json", "json-list", "indented", "indented-document", "quoted"],
)
def test_a_resource_is_read_in_each_yaml_and_json_form(text: str) -> None:
    """Lists and JSON come from kubectl, indented text from copy and paste."""
    assert converted(text, ConversionFindings()) == converted(V1BETA2, ConversionFindings())


def test_each_resource_of_a_list_is_converted_and_its_losses_have_its_name() -> None:
    other = yaml.safe_load(V1)
    other["metadata"] = {"name": "other", "namespace": "elsewhere", "labels": {"app": "x"}}
    items = [yaml.safe_load(V1BETA2), {"kind": "List", "items": [other]}, {"kind": "ConfigMap"}]
    findings = ConversionFindings()

    flows = converted(json.dumps({"kind": "KafkaMirrorMaker2List", "items": items}), findings)

    assert [flow["metadata"].get("namespace") for flow in flows] == ["kafka", "elsewhere", "elsewhere"]
    assert {"my-mirror-maker-2: spec.version", "other: metadata.labels"} <= {
        loss.setting for loss in findings.losses
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "apiVersion: v1\nkind: List\nitems: []\n",
            "it contains no KafkaMirrorMaker2, and it is not an mm2.properties",
        ),
        ("apiVersion: mirrorflow.io/v1alpha1\nkind: MirrorFlow\n", "a MirrorFlow needs no conversion"),
        ("kind: KafkaMirrorMaker2\n   spec: x\n", "line 2, column 8: invalid YAML"),
    ],
    ids=["empty", "MirrorFlow", "invalid"],
)
def test_other_manifests_are_refused(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        converted(text, ConversionFindings())


def changed(path: str, value: Any, text: str = V1) -> str:
    """The resource with *value* at *path*, such as `spec/mirrors/0/source`."""
    whole = yaml.safe_load(text)
    *above, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    parent = whole
    for part in above:
        parent = parent[part]
    parent[last] = value
    return yaml.safe_dump(whole)


@pytest.mark.parametrize(
    "path",
    [
        "spec/mirrors/0/sourceConnector/config/replication.policy.separator",
        "spec/mirrors/0/sourceConnector/tasksMax",
        "spec/mirrors/0/topicsPattern",
        "spec/mirrors/0/heartbeatConnector",
        "spec/mirrors/0/source/tls",
        "spec/target/config",
        "spec/replicas",
        "spec/resources",
        "metadata/labels",
    ],
)
def test_a_null_value_is_an_absent_one(path: str) -> None:
    """The API server treats null as absent. Otherwise the text `None` would become part of a topic name."""
    findings, plain = ConversionFindings(), ConversionFindings()

    assert converted(changed(path, None), findings) == converted(V1, plain)
    assert findings == plain


UNKNOWN = "Strimzi has no such field here, so it has no effect"


@pytest.mark.parametrize(
    ("path", "setting", "why"),
    [
        ("spec/mirrors/0/topics", "spec.mirrors[0].topics", f"{UNKNOWN}; did you mean topicsPattern?"),
        (
            "spec/mirrors/0/topicsPatern",
            "spec.mirrors[0].topicsPatern",
            f"{UNKNOWN}; did you mean topicsPattern?",
        ),
        (
            "spec/mirrors/0/topicsExclude",
            "spec.mirrors[0].topicsExclude",
            f"{UNKNOWN}; did you mean topicsExcludePattern?",
        ),
        ("spec/topicsPattern", "spec.topicsPattern", f"{UNKNOWN}; it belongs to a mirror"),
        (
            "spec/mirrors/0/sourceConnector/tls",
            "spec.mirrors[0].sourceConnector.tls",
            f"{UNKNOWN}; it belongs to a cluster",
        ),
        ("spec/target/tls", "cluster-b: tls.insecure", UNKNOWN),
        ("spec/target/authentication/user", "cluster-b: authentication.user", UNKNOWN),
        (
            "spec/mirrors/0/source/topicsPattern",
            "spec.mirrors[0].source.topicsPattern",
            f"{UNKNOWN}; it belongs to a mirror",
        ),
        (
            "spec/target/bootstrapServer",
            "spec.target.bootstrapServer",
            f"{UNKNOWN}; did you mean bootstrapServers?",
        ),
        ("sepc", "sepc", f"{UNKNOWN}; did you mean spec?"),
        (
            "metadata/annotations",
            "metadata.annotations",
            "annotations are not carried over; add those that the MirrorFlow needs",
        ),
        (
            "spec/mirrors/0/sourceConnector/config/tasks.max",
            "spec.mirrors[0].sourceConnector.config.tasks.max",
            "Strimzi takes it from tasksMax only",
        ),
        (
            "spec/mirrors/0/sourceConnector/config/source.cluster.security.protocol",
            "spec.mirrors[0].sourceConnector.config.source.cluster.security.protocol",
            "connections are set by the fields of clusters",
        ),
        ("spec/resources", "spec.resources.limits.ephemeral-storage", "the resource has no such field"),
    ],
    ids=lambda value: value if "/" in value else "",
)
def test_each_field_without_effect_is_listed_with_a_reason(path: str, setting: str, why: str) -> None:
    values = {
        "spec/target/tls": {"insecure": True},
        "spec/resources": {"limits": {"ephemeral-storage": "1Gi"}},
    }
    findings = ConversionFindings()

    converted(changed(path, values.get(path, {"a": "b"} if "metadata" in path else "4")), findings)

    assert [loss.why for loss in findings.losses if loss.setting == setting] == [why]
    assert not [line for line in report(findings) if line.endswith("?.")]


@pytest.mark.parametrize(
    ("connector", "key", "value", "why"),
    [
        ("source", "sync.group.offsets.enabled", "true", "only that of the checkpoint connector is used"),
        ("source", "emit.checkpoints.interval.seconds", "5", "only that of the checkpoint connector is used"),
        ("checkpoint", "replication.policy.separator", "_", "only that of the source connector is used"),
        ("checkpoint", "refresh.topics.interval.seconds", "5", "only that of the source connector is used"),
        ("checkpoint", "producer.override.linger.ms", "5", "only that of the source connector is used"),
        ("checkpoint", "transforms", "x", "only that of the source connector is used"),
        ("heartbeat", "groups", "a", "only that of the checkpoint connector is used"),
        ("heartbeat", "producer.linger.ms", "5", "only that of the source connector is used"),
        (
            "checkpoint",
            "sync.group.offset.enabled",
            "true",
            "unknown to Kafka's MirrorMaker 2 and to MirrorFlow; did you mean sync.group.offsets.enabled?",
        ),
        (
            "source",
            "consumer.fetch.min.byts",
            "1",
            "unknown to Kafka's MirrorMaker 2 and to MirrorFlow; did you mean consumer.fetch.min.bytes?",
        ),
    ],
)
def test_a_setting_that_its_connector_does_not_use_is_listed(
    connector: str, key: str, value: str, why: str
) -> None:
    findings = ConversionFindings()

    converted(
        changed("spec/mirrors/1", {**MIRROR, f"{connector}Connector": {"config": {key: value}}}), findings
    )

    assert [loss.why for loss in findings.losses if loss.setting == key] == [why]


MIRROR = {
    "source": {"alias": "cluster-c", "bootstrapServers": "c:9092"},
    **{f"{kind}Connector": {} for kind in ("source", "checkpoint", "heartbeat")},
}


def test_settings_that_are_equal_in_all_connectors_are_not_losses() -> None:
    """Many resources repeat the policy for each connector."""
    policy = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}
    same = {f"{kind}Connector": {"config": policy} for kind in ("source", "checkpoint", "heartbeat")}
    findings = ConversionFindings()

    converted(changed("spec/mirrors/1", MIRROR | same), findings)

    assert "replication.policy.class" not in {loss.setting for loss in findings.losses}


@pytest.mark.parametrize("switch", ["enabled", "emit.heartbeats.enabled"])
def test_disabled_heartbeats_stay_disabled(switch: str) -> None:
    mirror = MIRROR | {"heartbeatConnector": {"config": {switch: False}}}

    flow = parse_flow(converted(changed("spec/mirrors/1", mirror), ConversionFindings())[1])

    assert flow.spec.heartbeats.emit_to == ()


def test_a_disabled_source_connector_is_refused() -> None:
    mirror = MIRROR | {"sourceConnector": {"config": {"enabled": False}}}

    with pytest.raises(UsageError, match=r"spec.mirrors\[1\].sourceConnector.config.enabled: it is false"):
        converted(changed("spec/mirrors/1", mirror), ConversionFindings())


def test_the_state_of_a_checkpoint_connector_is_listed_and_an_unknown_state_refused() -> None:
    findings = ConversionFindings()
    converted(changed("spec/mirrors/1/checkpointConnector/state", "stopped"), findings)

    assert "spec.mirrors[1].checkpointConnector.state" in {loss.setting for loss in findings.losses}
    with pytest.raises(UsageError, match=r"spec.mirrors\[0\].sourceConnector.state: 'stop' is not known"):
        converted(changed("spec/mirrors/0/sourceConnector/state", "stop"), findings)


def test_a_cluster_without_an_alias_is_refused() -> None:
    with pytest.raises(UsageError, match=r"spec.mirrors\[0\]: its source has no alias"):
        converted(changed("spec/mirrors/0/source", {"bootstrapServers": "a:1"}), ConversionFindings())


def test_an_alias_in_the_connector_config_overrides_the_cluster_alias() -> None:
    """As in Strimzi, the alias of the cluster remains part of the connector name."""
    [first, _] = converted(
        changed("spec/mirrors/0/sourceConnector/config/source.cluster.alias", "east"), ConversionFindings()
    )

    assert first["spec"]["source"]["alias"] == "east"
    assert (
        first["spec"]["connectors"]["source"]["config"]["name"]
        == "cluster-a->cluster-b.MirrorSourceConnector"
    )


def test_the_error_for_an_empty_alias_suggests_the_identity_policy() -> None:
    """Before that policy, an empty alias kept the topic names."""
    with pytest.raises(UsageError, match=r"source.cluster.alias: it is empty, .*IdentityReplicationPolicy"):
        converted(
            changed("spec/mirrors/0/sourceConnector/config/source.cluster.alias", ""), ConversionFindings()
        )


def test_replicas_and_resources_apply_to_the_source_connector() -> None:
    findings = ConversionFindings()
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}

    first, second = (
        parse_flow(document)
        for document in converted(changed("spec/replicas", 3, changed("spec/resources", resources)), findings)
    )

    for flow in (first, second):
        source = flow.spec.connectors.source
        assert (source.replicas, source.resources.requests.cpu, source.resources.limits.memory) == (
            3,
            "500m",
            "2Gi",
        )
        assert flow.spec.connectors.checkpoint.replicas == 1
    [warning] = findings.warnings
    assert warning.startswith(
        "spec.replicas and spec.resources: written for the source connector of each flow; "
    )


CIPHERS = {
    "ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "ssl.enabled.protocols": "TLSv1.2",
    "ssl.endpoint.identification.algorithm": "",
    "ssl.protocol": "TLSv1.2",
}


@pytest.mark.parametrize("index", [0, 1])
def test_cipher_suites_and_login_become_custom_authentication(index: int) -> None:
    """Type Custom then has the properties of the named type."""
    findings = ConversionFindings()
    plain = plan(parse_flow(converted(V1BETA2, ConversionFindings())[0]), POD_LAYOUT).connectors[0]

    flow = parse_flow(converted(changed(f"spec/clusters/{index}/config", CIPHERS, V1BETA2), findings)[0])

    side = ("source", "target")[index]
    prefix = f"{side}.cluster.s"
    before, after = (
        {key: value for key, value in connector.connector_properties.items() if key.startswith(prefix)}
        for connector in (plain, plan(flow, POD_LAYOUT).connectors[0])
    )
    assert after == before | {
        f"{side}.cluster.{key}": value for key, value in CIPHERS.items() if key != "ssl.protocol"
    }
    alias = ("cluster-a", "cluster-b")[index]
    assert f"{alias}: config.ssl.protocol" in {loss.setting for loss in findings.losses}


@pytest.mark.parametrize(
    ("handler", "type_"),
    [
        ("software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler", "AwsIam"),
        ("com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler", "GcpWorkloadIdentity"),
        (
            "com.azure.spring.cloud.service.implementation.kafka.KafkaOAuth2AuthenticateCallbackHandler",
            "AzureWorkloadIdentity",
        ),
    ],
)
def test_a_custom_login_to_a_cloud_becomes_its_type(handler: str, type_: str) -> None:
    """Strimzi supports cloud logins only with its type `custom`, Java's properties, and a class in the image."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    config = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": handler,
        "sasl.jaas.config": f"{module} required;",
    }
    custom = {"type": "custom", "sasl": True, "config": config}
    target = changed("spec/target/tls", {"trustedCertificates": []})

    (flow, *_) = converted(changed("spec/target/authentication", custom, target), ConversionFindings())
    further = custom | {"config": config | {"sasl.login.read.timeout.ms": "100"}}
    (other, *_) = converted(changed("spec/target/authentication", further, target), ConversionFindings())

    assert flow["spec"]["target"]["authentication"] == {"type": type_}
    assert other["spec"]["target"]["authentication"]["type"] == "Custom"


def test_cipher_suites_without_tls_are_listed() -> None:
    findings = ConversionFindings()
    converted(changed("spec/target/config", CIPHERS), findings)

    assert "cluster-b: config.ssl.cipher.suites" in {loss.setting for loss in findings.losses}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("sourceCluster: cluster-a", "sourceCluster: other", r"spec\.mirrors\[0\]\.sourceCluster"),
        ("type: scram-sha-512", "type: kerberos", "authentication.type kerberos"),
        ("metric.reporters: com", "transforms: com", "transforms"),
        ("      sourceConnector:\n", "      otherConnector:\n", "no mirror has a sourceConnector"),
    ],
)
def test_a_field_that_cannot_be_converted_is_refused(before: str, after: str, expected: str) -> None:
    """The error is one sentence with the path of the field in Strimzi's resource."""
    with pytest.raises(UsageError, match=expected):
        converted(V1BETA2.replace(before, after), ConversionFindings())


def test_the_identity_policy_with_an_empty_separator_is_converted() -> None:
    """Strimzi's examples set both for years."""
    naming = """replication.policy.class: io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy
          replication.policy.separator: ""
          replication.factor: -1
          offset-syncs"""
    findings = ConversionFindings()

    flow = parse_flow(
        converted(V1BETA2.replace("replication.factor: -1\n          offset-syncs", naming, 1), findings)[0]
    )

    assert (flow.spec.topics.naming.policy.value, flow.spec.topics.naming.separator) == ("Identity", ".")
    [reason] = [loss.why for loss in findings.losses if loss.setting == "replication.policy.separator"]
    assert "mm2-offset-syncs.B.internal" in reason
