"""Strimzi's KafkaMirrorMaker2, both versions of its API, to MirrorFlows: names of connectors and topics are Strimzi's."""

import pytest

from mirrorflow_cli.commands.convert import converted
from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.java_flow import ConversionFindings
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.plan.properties import POD_LAYOUT, plan

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


def test_v1beta2_becomes_a_flow_with_the_same_secrets_and_names() -> None:
    """Every part of Strimzi's own example, and security on both sides."""
    findings = ConversionFindings()

    one = parse_flow(converted(V1BETA2, findings)[0])

    spec = one.spec
    assert "cluster-a-to-cluster-b" == one.metadata.name
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


def test_positions_of_strimzi_are_found_again() -> None:
    """Connector name and offsets topic are the keys to them."""
    connector = plan(parse_flow(converted(V1BETA2, ConversionFindings())[0]), POD_LAYOUT).connectors[0]

    assert "cluster-a->cluster-b.MirrorSourceConnector" == connector.connector_properties["name"]
    assert "mirrormaker2-cluster-offsets" == connector.worker_properties["offset.storage.topic"]
    assert "mirrormaker2-cluster" == connector.worker_properties["group.id"]
    assert "zstd" == connector.worker_properties["producer.compression.type"]
    assert {"refresh.topics.interval.seconds": "60", "consumer.max.poll.records": "2000"}.items() <= (
        connector.connector_properties.items()
    )


def test_what_has_no_counterpart_is_listed() -> None:
    """Fields of the resource, of connectors, of clusters, and settings."""
    findings = ConversionFindings()
    converted(V1BETA2, findings)

    assert {
        "spec.version",
        "spec.replicas",
        "cluster-a: tls.trustedCertificates[cluster-a-cluster-ca-cert].pattern *.crt",
        "sourceConnector.autoRestart",
        "topics.exclude",
        "config.storage.replication.factor",
        "status.storage.replication.factor",
        "metric.reporters",
    } == {loss.setting for loss in findings.losses}


def test_v1_has_one_target_and_a_flow_for_each_source() -> None:
    """Names are the resource's own there; a paused connector is a paused flow; without a connector there is none."""
    first, second = (parse_flow(one) for one in converted(V1, ConversionFindings()))

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


def test_documents_of_other_kinds_are_passed_over() -> None:
    """Files with several objects are common."""
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\n---\n{V1BETA2}\n---\n{V1}"

    assert 3 == len(converted(text, ConversionFindings()))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("sourceCluster: cluster-a", "sourceCluster: other", r"spec\.mirrors\[0\]\.sourceCluster"),
        ("type: scram-sha-512", "type: kerberos", "authentication.type kerberos"),
        ("metric.reporters: com", "transforms: com", "transforms"),
        ("      sourceConnector:\n", "      otherConnector:\n", "no mirror has a sourceConnector"),
    ],
)
def test_what_cannot_be_converted_is_named(before: str, after: str, expected: str) -> None:
    """One sentence, by the path in Strimzi's resource."""
    with pytest.raises(UsageError, match=expected):
        converted(V1BETA2.replace(before, after), ConversionFindings())


def test_the_identity_policy_beside_an_empty_separator_is_converted() -> None:
    """Strimzi's own examples had both for years."""
    naming = """replication.policy.class: io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy
          replication.policy.separator: ""
          replication.factor: -1
          offset-syncs"""
    findings = ConversionFindings()

    one = parse_flow(
        converted(V1BETA2.replace("replication.factor: -1\n          offset-syncs", naming, 1), findings)[0]
    )

    assert (one.spec.topics.naming.policy.value, one.spec.topics.naming.separator) == ("Identity", ".")
    [told] = [loss.why for loss in findings.losses if loss.setting == "replication.policy.separator"]
    assert "mm2-offset-syncs.B.internal" in told
