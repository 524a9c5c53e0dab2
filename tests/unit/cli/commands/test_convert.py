"""Converting mm2.properties to MirrorFlows and back keeps the effective settings, or lists those it cannot keep."""

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.commands.convert import converted, report, yaml_text
from mirrorflow_cli.commands.export import exported, text
from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.java_flow import ConversionFindings
from mirrorflow_core.java.properties import parse_properties
from mirrorflow_core.setting_table import KEYS, Scope
from mirrorflow_operator.api.load import load_flow, parse_flow
from mirrorflow_operator.api.spec import State
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan.properties import plan
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT, SecretLayout
from mirrorflow_replicator.config.dedicated_mode import load_mm2
from tests.unit.cli.effective_settings import effective, emitting
from tests.unit.cli.mm2_blocks import BLOCKS

TWO = BLOCKS["shared configuration"]
FILE_PROVIDER = """
config.providers = file
config.providers.file.class = org.apache.kafka.common.config.provider.FileConfigProvider
"""
# Settings of a block that a MirrorFlow cannot express: field of the settings object -> setting in the report.
REPORTED_LOSSES = {
    "config of a flow": {"topics_exclude": "topics.exclude", "topics": "topics.exclude"},
    "clients": {
        "source_admin": "primary.admin.bootstrap.servers",
        "admin": "primary.admin.bootstrap.servers",
        "beats": "primary.admin.bootstrap.servers",
    },
}


def round_trip(source: str, layout: SecretLayout = POD_LAYOUT) -> tuple[str, ConversionFindings, list[str]]:
    """Returns the exported text, the findings of the conversion, and the losses of the export."""
    findings = ConversionFindings()
    documents = [load_flow(yaml_text(document)) for document in converted(source, findings)]
    export = exported(documents, layout)
    return text(export.lines), findings, export.losses


def differences(source: str, back: str) -> dict[str, tuple[Any, Any]]:
    before, after = effective(source), effective(back)
    lost = emitting(source) - emitting(
        back
    )  # tested by test_heartbeats_are_emitted_between_the_same_clusters
    before = {
        key: value for key, value in before.items() if key.partition(".")[0] not in lost or key in after
    }
    assert before.keys() == after.keys()
    return {key: (value, after[key]) for key, value in before.items() if value != after[key]}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_round_trip_keeps_the_effective_settings_of_a_block(name: str) -> None:
    """Only settings that the conversion lists may differ."""
    back, findings, losses = round_trip(BLOCKS[name])

    different = {key.rpartition(".")[2] for key in differences(BLOCKS[name], back)}
    listed = {loss.setting for loss in findings.losses}
    assert different <= REPORTED_LOSSES.get(name, {}).keys()
    assert {REPORTED_LOSSES[name][key] for key in different} <= listed
    assert [] == losses


@pytest.mark.parametrize("name", BLOCKS)
def test_heartbeats_are_emitted_between_the_same_clusters(name: str) -> None:
    """Only pairs without a flow in either direction may be missing, and the conversion lists them."""
    back, findings, _ = round_trip(BLOCKS[name])

    lost = emitting(BLOCKS[name]) - emitting(back)
    assert set() == emitting(back) - emitting(BLOCKS[name])
    reported = " ".join(loss.why for loss in findings.losses if loss.setting == "emit.heartbeats.enabled")
    assert all(pair in reported for pair in lost)
    assert ("six clusters" == name) == bool(lost)


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "topics": st.sampled_from([".*", "orders.*, payments", r"[a-z]+\.v\d"]),
        "groups": st.sampled_from([".*", "billing, shipping"]),
        "topics.exclude": st.just(r"secret.*, mm2.*\.internal, .*\.replica, __.*"),
        "replication.factor": st.sampled_from(["-1", "1", "3"]),
        "offset-syncs.topic.replication.factor": st.sampled_from(["-1", "1", "3"]),
        "checkpoints.topic.replication.factor": st.sampled_from(["-1", "1", "3"]),
        "offset.storage.replication.factor": st.sampled_from(["-1", "1", "3"]),
        "offset.storage.partitions": st.sampled_from(["1", "25"]),
        "replication.policy.separator": st.sampled_from([".", "_", "--"]),
        "replication.policy.internal.topic.separator.enabled": st.sampled_from(["true", "false"]),
        "refresh.topics.interval.seconds": st.sampled_from(["5", "600", "-1"]),
        "sync.topic.configs.enabled": st.sampled_from(["true", "false"]),
        "sync.topic.acls.enabled": st.sampled_from(["true", "false"]),
        "A->B.emit.heartbeats.interval.seconds": st.sampled_from(["1", "5"]),
        "emit.heartbeats.interval.seconds": st.sampled_from(["1", "7"]),
        "heartbeats.topic.replication.factor": st.sampled_from(["-1", "1", "3"]),
        "emit.checkpoints.interval.seconds": st.sampled_from(["10", "60"]),
        "A->B.emit.offset-syncs.enabled": st.sampled_from(["true", "false"]),
        "A->B.emit.checkpoints.enabled": st.sampled_from(["true", "false"]),
        "offset.lag.max": st.sampled_from(["0", "100"]),
        "A->B.emit.heartbeats.enabled": st.sampled_from(["true", "false"]),
        "B->A.emit.heartbeats.enabled": st.sampled_from(["true", "false"]),
        "B->A.enabled": st.sampled_from(["true", "false"]),
        "A->B.offset-syncs.topic.location": st.sampled_from(["source", "target"]),
        "A->B.sync.group.offsets.enabled": st.sampled_from(["true", "false"]),
        "A->B.use.defaults.from": st.sampled_from(["source", "target"]),
        "A->B.offset.flush.interval.ms": st.sampled_from(["100", "60000"]),
        "A->B.mirrorflow.source.loss.policy": st.sampled_from(["fail", "alert", "restart"]),
        "A->B.mirrorflow.bytes.per.second": st.sampled_from(["50Mi", "1000000"]),
        "A->B.mirrorflow.start.from": st.sampled_from(["latest", "timestamp:2026-01-31T00:00:00Z"]),
        "A->B.producer.override.client.id": st.just("mine"),
        "A.consumer.isolation.level": st.just("read_committed"),
        "A.consumer.client.rack": st.just("r1"),
        "A.consumer.auto.offset.reset": st.sampled_from(["earliest", "latest"]),
        "B.producer.compression.type": st.just("zstd"),
        "A.admin.client.id": st.just("watcher"),
        "B.offset.storage.topic": st.just("mine"),
        "B.group.id": st.just("mine"),
        "tasks.max": st.sampled_from(["1", "4"]),
        "task.shutdown.graceful.timeout.ms": st.just("9000"),
    },
)


@given(SETTINGS)
def test_a_round_trip_keeps_any_combination_of_settings(lines: dict[str, str]) -> None:
    """Each setting with a counterpart is kept, independent of other settings."""
    source = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n"
    has_no_syncs = lines.get("A->B.emit.offset-syncs.enabled") == "false"
    source += "".join(
        f"{key} = {value.replace(chr(92), chr(92) * 2)}\n"
        for key, value in lines.items()
        # MM2 refuses settings of the syncs topic if no syncs are written.
        if not (has_no_syncs and "offset-syncs.topic." in key)
    )

    back, findings, _ = round_trip(source)

    losses = {loss.setting for loss in findings.losses if loss.flow == "B->A"}
    loses_interval = "emit.heartbeats.interval.seconds" in losses
    # The start offset is a separate field, which overrides the consumer's setting.
    assert {} == {
        key: pair
        for key, pair in differences(source, back).items()
        if not (key.endswith("source_consumer") and _without_reset(pair[0]) == _without_reset(pair[1]))
        and not (key == "B->A.heartbeat.interval_s" and loses_interval)
    }


def _without_reset(client: Any) -> Any:
    alias, client_id, properties = client
    return alias, client_id, {k: v for k, v in properties.items() if k != "auto.offset.reset"}


SECURED = TWO + (
    "config.providers = file\n"
    "config.providers.file.class = org.apache.kafka.common.config.provider.FileConfigProvider\n"
    "A.security.protocol = SASL_SSL\n"
    "A.sasl.mechanism = SCRAM-SHA-512\n"
    "A.sasl.jaas.config = org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="m" password="hunter2";\n'
    "A.ssl.truststore.location = /etc/a.jks\n"
    "A.ssl.truststore.password = hunter2\n"
    "B.security.protocol = SASL_PLAINTEXT\n"
    "B.sasl.mechanism = PLAIN\n"
    "B.sasl.jaas.config = org.apache.kafka.common.security.plain.PlainLoginModule required "
    "username=w password=${file:/etc/b.properties:password};\n"
)


def test_exported_flows_read_secrets_from_the_listed_files(tmp_path: Path) -> None:
    """With the listed files the logins are the same. No output contains their content."""
    plain = SECURED.replace("${file:/etc/b.properties:password}", "hunter2")
    layout = SecretLayout(secrets=str(tmp_path), config_maps=str(tmp_path))
    back, findings, _ = round_trip(SECURED, layout)
    output = "\n".join([back, *report(findings)])
    for secret in findings.secrets:
        (tmp_path / secret.secret).mkdir(exist_ok=True)
        (tmp_path / secret.secret / secret.key).write_text("hunter2")

    assert {} == differences(plain, back)
    assert "hunter2" not in output
    assert {
        "a-ca/ca.crt": "the authorities of A.ssl.truststore.location /etc/a.jks, as PEM",
        "a-mirror/password": "option password of A.sasl.jaas.config",
        "b-mirror/password": "${file:/etc/b.properties:password}",
    } == {f"{secret.secret}/{secret.key}": secret.origin for secret in findings.secrets}


def test_a_client_certificate_with_a_password_becomes_custom_authentication() -> None:
    """No named type has both. Secrets stay references."""
    source = SECURED + "A.ssl.keystore.location = /etc/a.p12\nA.ssl.keystore.password = hunter2\n"
    findings = ConversionFindings()

    document = converted(source, findings)[0]

    authentication = document["spec"]["source"]["authentication"]
    assert ("Custom", True) == (authentication["type"], authentication["sasl"])
    assert "${dir:/mnt/mirrorflow/secrets/a-client:tls.key}" == authentication["config"]["ssl.keystore.key"]
    assert (
        'password="${dir:/mnt/mirrorflow/secrets/a-mirror:password}"'
        in (authentication["config"]["sasl.jaas.config"])
    )
    assert "hunter2" not in yaml_text(document)


def test_an_alias_set_for_one_flow_overrides_the_alias_of_the_cluster() -> None:
    """Topic names and stored offsets use the flow's alias.

    The name of the offsets topic still has the cluster's alias.
    """
    source = TWO + "A->B.source.cluster.alias = east\n"
    flow = parse_flow(converted(source, ConversionFindings())[0])
    before = load_mm2(source)[0].connectors[0].source

    assert before is not None
    assert (before.source_alias, before.flow) == ("east", "east->B")
    assert "east" == flow.spec.source.alias
    assert {"mirrorflow.flow": before.flow, "offset.storage.topic": before.offsets.topic}.items() <= (
        flow.spec.connectors.source.config.items()
    )


def test_a_converted_flow_keeps_the_keys_of_stored_offsets() -> None:
    """These are aliases, connector name, offsets topic, policy and separator."""
    source = TWO + "B.offset.storage.topic = mine\nreplication.policy.separator = _\n"

    connector = plan(parse_flow(converted(source, ConversionFindings())[0]), POD_LAYOUT).connectors[0]

    assert "mine" == connector.worker_properties["offset.storage.topic"]
    assert {
        "name": "MirrorSourceConnector",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "replication.policy.separator": "_",
        "mirrorflow.flow": "A->B",
    }.items() <= connector.connector_properties.items()


def test_a_round_trip_keeps_a_takeover_and_reports_the_paused_state() -> None:
    """The resource has fields for both, so `config` may not contain them."""
    source = TWO + "A->B.mirrorflow.state = Paused\nA->B.mirrorflow.takeover.from = x->B, y->B\n"
    spec = parse_flow(converted(source, ConversionFindings())[0]).spec
    back, _, losses = round_trip(source)

    assert (spec.state, spec.take_over_from) == (State.PAUSED, ("x->B", "y->B"))
    assert {} == differences(source, back)
    assert ["a-to-b: spec.state Paused: MM2 runs every enabled flow."] == losses


@pytest.mark.parametrize(
    "line",
    [
        "transforms = drop",
        "replication.policy.class = com.example.Policy",
        "A->B.topic.filter.class = com.example.Filter",
        "A->B.errors.tolerance = all",
        "A->B.consumer.interceptor.classes = com.example.Spy",
    ],
)
def test_a_setting_that_would_change_the_copied_records_is_refused(line: str) -> None:
    """The error names the setting, and nothing is converted."""
    with pytest.raises(UsageError, match=line.partition(" =")[0].removeprefix("A->B.").replace(".", r"\.")):
        converted(TWO + line + "\n", ConversionFindings())


def test_one_error_lists_all_refused_settings() -> None:
    with pytest.raises(UsageError) as raised:
        converted(TWO + "transforms = drop\nA->B.errors.tolerance = all\n", ConversionFindings())

    assert "transforms" in str(raised.value)
    assert "errors.tolerance" in str(raised.value)


VALUES = ("7", "false", "true", "x", "target", "latest", "target, source", "IdentityReplicationPolicy")
PREFIXES = (
    (Scope.CONNECTOR, ("A->B.", "")),
    (Scope.WORKER, ("B.",)),
    (Scope.REST, ("",)),
    (Scope.DRIVER, ("",)),
    (Scope.CLIENT, ("A.consumer.", "B.producer.", "A.admin.")),
)


def conversion_result(source: str) -> Any:
    findings = ConversionFindings()
    try:
        return converted(source, findings), findings
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize(("scope", "prefixes"), PREFIXES, ids=lambda value: getattr(value, "name", ""))
def test_each_known_setting_is_converted_listed_or_refused(scope: Scope, prefixes: tuple[str, ...]) -> None:
    """Each key is tried with the values in VALUES. At least one of them changes the flow, is listed, or is refused."""
    plain = TWO.replace("A->B.topics = foo\n", "")
    without = conversion_result(plain)
    unreported = [
        prefix + key.name
        for key in KEYS
        for prefix in prefixes
        if key.scope is scope and "*" not in key.name
        if all(conversion_result(f"{plain}{prefix}{key.name} = {value}\n") == without for value in VALUES)
    ]

    # These keys belong to the structure of the file. Aliases at the top level apply to no cluster.
    structure = {"connector.class", "A->B.connector.class", "source.cluster.alias", "target.cluster.alias"}
    assert set() == set(unreported) - structure


@pytest.fixture
def mirrorflow(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Calls the command; returns (exit status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(list(arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_convert_writes_files_and_lists_what_is_not_converted(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """`validate` and `export` accept the files. The list with reasons is on stderr."""
    source = tmp_path / "mm2.properties"
    source.write_text(SECURED + "metric.reporters = com.example.Reporter\nB->A.enabled = true\n")

    status, out, err = mirrorflow("convert", str(source), "-o", str(tmp_path / "flows"))

    assert (0, [f"{tmp_path}/flows/a-to-b.yaml", f"{tmp_path}/flows/b-to-a.yaml"]) == (
        status,
        out.splitlines(),
    )
    assert "  metric.reporters (A->B, B->A): metrics are served by HTTP; reporters are Java classes.\n" in err
    assert "  a-mirror/password: option password of A.sasl.jaas.config\n" in err
    assert 0 == mirrorflow("validate", "-f", out.splitlines()[0])[0]
    files = [flag for path in out.splitlines() for flag in ("-f", path)]
    status, back, _ = mirrorflow("export", *files, "--secrets", str(tmp_path))
    assert 0 == status
    assert "A->B.enabled = true\n" in back
    assert "B->A.enabled = true\n" in back


def test_convert_prints_one_json_object_without_secrets(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    source = tmp_path / "mm2.properties"
    source.write_text(SECURED + "metric.reporters = com.example.Reporter\n")

    status, out, err = mirrorflow("convert", str(source), "--json")

    output = json.loads(out)
    assert (0, "") == (status, err)
    assert ["a-to-b"] == [flow["metadata"]["name"] for flow in output["flows"]]
    assert {"secretName": "a-mirror", "key": "password"}.items() <= output["secrets"][1].items()
    assert {"flow": "A->B", "setting": "metric.reporters"}.items() <= next(
        loss.items() for loss in output["unsupported"] if loss["setting"] == "metric.reporters"
    )
    assert "hunter2" not in out


def test_convert_refuses_a_file_without_an_enabled_flow(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    source = tmp_path / "mm2.properties"
    source.write_text(TWO.replace("A->B.enabled = true", ""))

    status, out, err = mirrorflow("convert", str(source))

    assert (2, "") == (status, out)
    assert (
        f"{source}: clusters: no replication flow is enabled; set A->B.enabled=true for one of them.\n" == err
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TWO + 'topics = {{ .Values.topics | join "," }}\n', len(TWO.splitlines()) + 1),
        ("clusters = A, {{ target }}\n", 1),
        ("{% if mirrored %}\nclusters = A, B\n{% endif %}\n", 1),
        ("# {{ a comment }}\nkind: KafkaMirrorMaker2\nmetadata: {name: {{ .Release.Name }}}\n", 3),
        ("kind: KafkaMirrorMaker2\n{{- if .Values.enabled }}\nspec: {}\n{{- end }}\n", 2),
        ('kind: KafkaMirrorMaker2\nspec:\n  connectCluster: "{{ .Values.target }}"\n', 3),
    ],
    ids=["properties", "jinja", "statement", "value", "condition", "quoted"],
)
def test_convert_refuses_a_template_that_is_not_rendered(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path, text: str, line: int
) -> None:
    source = tmp_path / "template"
    source.write_text(text)

    status, out, err = mirrorflow("convert", str(source))

    assert (2, "") == (status, out)
    assert (
        f"{source}: line {line}: it is a template; render it first, for example by helm template, "
        "and convert the result.\n" == err
    )


IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
STRIMZI = """
apiVersion: kafka.strimzi.io/v1
kind: KafkaMirrorMaker2
metadata: {{name: mirror}}
spec:
  target: {{alias: west, bootstrapServers: "west:9092"}}
  mirrors:
    - source: {{alias: east, bootstrapServers: "east:9092"}}
      sourceConnector: {{config: {config}}}
      topicsPattern: "{pattern}"
"""


@pytest.mark.parametrize(
    "text",
    [
        TWO + f"replication.policy.class = {IDENTITY}\nreplication.policy.separator =\n",
        STRIMZI.format(
            config=json.dumps({"replication.policy.class": IDENTITY, "replication.policy.separator": ""}),
            pattern=".*",
        ),
    ],
    ids=["mm2.properties", "Strimzi"],
)
def test_identity_policy_with_an_empty_separator_becomes_a_valid_flow(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path, text: str
) -> None:
    """Many existing files set both."""
    source = tmp_path / "source"
    source.write_text(text)

    status, out, err = mirrorflow("convert", str(source), "-o", str(tmp_path / "flows"))

    assert (status, "Identity") == (
        0,
        load_flow(Path(out.strip()).read_text()).spec.topics.naming.policy.value,
    )
    assert "replication.policy.separator" in err
    assert mirrorflow("validate", "-f", out.strip())[0] == 0


@pytest.mark.parametrize(
    "text",
    [
        TWO.replace("A->B.topics = foo", "A->B.topics = orders[0-9]{1,3}"),
        STRIMZI.format(config="{}", pattern="orders[0-9]{1,3}"),
    ],
    ids=["mm2.properties", "Strimzi"],
)
def test_convert_refuses_a_quantifier_with_a_comma(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path, text: str
) -> None:
    """MM2 splits the list at the comma."""
    source = tmp_path / "source"
    source.write_text(text)

    status, out, err = mirrorflow("convert", str(source))

    assert (status, out) == (2, "")
    assert "one that holds a comma, as in {1,3}, is split there" in err


def test_a_config_exception_for_a_pattern_that_ends_in_a_question_mark_is_converted() -> None:
    """`?:` separates topics from settings; the colon of `(?:` does not."""
    line = r"A->B.mirrorflow.config.properties.exclude.by.topic = orders.?:retention\\.ms, (?:a|b):(?:c|d)"

    (document,) = converted(f"{TWO}\n{line}\n", ConversionFindings())

    assert document["spec"]["topics"]["configs"]["exceptions"] == [
        {"topics": ["orders.?"], "exclude": [r"retention\.ms"]},
        {"topics": ["(?:a|b)"], "exclude": ["(?:c|d)"]},
    ]


def test_braces_in_a_comment_are_not_a_template(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    source = tmp_path / "mm2.properties"
    source.write_text("  # was {{ .Values.topics }}\n" + TWO)

    assert mirrorflow("convert", str(source))[0] == 0


def test_export_refuses_flows_with_different_addresses_of_one_cluster() -> None:
    """An mm2.properties has each cluster once."""
    there = converted(TWO, ConversionFindings())[0]
    back = converted(TWO.replace("A->B", "B->A").replace("a:9092", "a2:9092"), ConversionFindings())[0]

    with pytest.raises(
        UsageError, match=r"A\.bootstrap\.servers: flows a-to-b and b-to-a have conflicting values"
    ):
        exported([parse_flow(there), parse_flow(back)], POD_LAYOUT)


COMMENT = "what looks like a comment behind the value is part of it, as in Java; write comments on lines of their own."


@pytest.mark.parametrize(
    "key", ["topics", "topics.exclude", "topics.blacklist", "topics.whitelist", "groups.blacklist"]
)
def test_a_comment_after_a_pattern_is_part_of_the_value_and_causes_a_warning(key: str) -> None:
    """This holds for each name of a setting, as in `mirrorflow-replicator mm2`."""
    text = f"{TWO}A->B.{key} = .*-tmp # all\n".replace("A->B.topics = foo\n", "")
    findings = ConversionFindings()

    [document] = converted(text, findings)

    spec = document["spec"]["groups" if key.startswith("groups") else "topics"]
    assert ".*-tmp # all" in (spec.get("exclude") or spec["include"])
    assert f"A->B.{key}: {COMMENT}" in findings.warnings
    assert f"A->B.{key}: {COMMENT}" in load_mm2(text)[0].warnings
    assert f"  A->B.{key}: {COMMENT}" in list(report(findings))


def test_the_report_includes_warnings_about_the_file(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    source = tmp_path / "mm2.properties"
    source.write_text(f"{TWO}tasks.max = 2\ntasks.max = 4\ntopics.whitelist = a\ntopcs = b\n")

    status, out, err = mirrorflow("convert", str(source), "--json")

    assert (status, err) == (0, "")
    assert json.loads(out)["warnings"] == [
        "tasks.max is set twice; the last line applies, as in Java.",
        "topics.whitelist: read as topics, which is its name.",
    ]
    err = mirrorflow("convert", str(source))[2]
    assert "  topcs: unknown, it has no effect; did you mean topics?\n" in err
    assert "  topics.whitelist: read as topics, which is its name.\n" in err


def test_unknown_client_settings_are_left_out_and_reported_once(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Java ignores them. A MirrorFlow with an unknown setting is refused."""
    source = tmp_path / "mm2.properties"
    source.write_text(f"{TWO}A.consumer.acme.tracing = on\nA.consumer.isolation.leval = read_committed\n")

    status, out, err = mirrorflow("convert", str(source))

    assert status == 0
    assert "acme" not in out
    assert "leval" not in out
    assert 1 == err.count("A.consumer.acme.tracing")
    assert (
        "A.consumer.isolation.leval: unknown, it has no effect; did you mean consumer.isolation.level?" in err
    )


@pytest.mark.parametrize(
    "line", ["tasks.max = 4", "A->B.tasks.max = 4", "A->B.tasks.max = 4\ntasks.max.enforce = true"]
)
def test_the_number_of_tasks_is_converted(line: str) -> None:
    findings = ConversionFindings()

    [document] = converted(f"{TWO}{line}\n", findings)

    assert document["spec"]["connectors"]["source"]["tasks"] == 4
    assert "tasks.max" not in {loss.setting for loss in findings.losses}


@pytest.mark.parametrize(
    "line", ["source.cluster.alias = east", "A->B.source.cluster.alias = east", "A.alias = east"]
)
def test_an_alias_setting_is_converted_and_not_listed_as_a_loss(line: str) -> None:
    """As in MM2, topics and stored offsets use the alias."""
    plain, findings = ConversionFindings(), ConversionFindings()
    converted(TWO, plain)

    [document] = converted(f"{TWO}{line}\n", findings)

    assert document["spec"]["source"]["alias"] == "east"
    assert [(loss.setting, loss.why) for loss in findings.losses] == [
        (loss.setting, loss.why) for loss in plain.losses
    ]


def test_a_flow_setting_written_for_a_cluster_is_listed_with_the_right_prefix() -> None:
    findings = ConversionFindings()
    converted(f"{TWO}B.tasks.max = 4\n", findings)

    assert [loss.why for loss in findings.losses if "tasks.max" in loss.setting] == [
        "it has no effect for a cluster; write it for a flow, as A->B.tasks.max"
    ]


EMPTY_ALIASES = "source.cluster.alias =\ntarget.cluster.alias =\nreplication.policy.separator =\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            EMPTY_ALIASES,
            "source.cluster.alias: it is empty, an old way to keep the names of topics; write replication.policy.class=Identity",
        ),
        (
            "replication.policy.separator =\n",
            "or replication.policy.class=IdentityReplicationPolicy to keep the names of topics.",
        ),
        ("A->B.topics = ${TOPICS}\n", "line N: nothing has replaced ${TOPICS}; render the file first"),
        (
            "A.bootstrap.servers = ${KAFKA}:9092\n",
            "line N: nothing has replaced ${KAFKA}; render the file first",
        ),
        (
            "A->B.topics = ${env:MIRRORFLOW_UNSET}\n",
            "A->B.topics: the reference ${env:MIRRORFLOW_UNSET} cannot be resolved: ",
        ),
        (
            "A.bootstrap.servers = ${env:MIRRORFLOW_UNSET}\n",
            "A.bootstrap.servers: the reference ${env:MIRRORFLOW_UNSET} cannot",
        ),
        (
            "A.bootstrap.servers = a;9092\n",
            "A->B: spec.source.bootstrapServers[0]: 'a;9092' is not an address; ",
        ),
    ],
    ids=[
        "aliases",
        "separator",
        "topics",
        "address",
        "variable",
        "address-variable",
        "address-form",
    ],
)
def test_an_error_names_the_setting_with_its_key_in_the_file(lines: str, expected: str) -> None:
    """It shows neither a regular expression nor a message of a library."""
    providers = "config.providers = env\nconfig.providers.env.class = EnvVarConfigProvider\n"

    with pytest.raises(UsageError) as raised:
        converted(TWO + providers + lines, ConversionFindings())

    assert expected in re.sub(r"line \d+", "line N", str(raised.value))


def test_group_names_and_secrets_are_not_placeholders() -> None:
    """A replacement may refer to a named group, and a password may contain any characters."""
    renaming = {
        "": "r",
        ".r.type": "org.apache.kafka.connect.transforms.RegexRouter",
        ".r.regex": "(?<n>.*)",
        ".r.replacement": "${n}",
    }
    lines = "".join(f"A->B.transforms{key} = {value}\n" for key, value in renaming.items())

    [document] = converted(f"{TWO}{lines}A.ssl.truststore.password = ${{PASSWORD}}\n", ConversionFindings())

    assert document["spec"]["connectors"]["source"]["config"]["transforms.r.replacement"] == "${n}"


REGISTRIES = """
clusters = east, west, north
east.bootstrap.servers = e:9092
west.bootstrap.servers = w:9092
north.bootstrap.servers = n:9092
east->west.enabled = true
east.schema.registry.url = https://registry-east:8081
west.schema.registry.url = http://registry-west:8081
"""


def test_schema_registries_become_spec_schemas() -> None:
    """The schema connector has the settings of the file. Passwords become references to Secrets."""
    lines = """
    east.schema.registry.basic.auth.user.info = mirror:hidden-password
    east.schema.registry.ssl.truststore.location = /certs/east.jks
    east.schema.registry.ssl.truststore.password = hidden-password
    east.schema.registry.ssl.endpoint.identification.algorithm =
    west.schema.registry.bearer.auth.token = hidden-token
    east->west.mirrorflow.schemas.subjects = orders.*, payments
    mirrorflow.schemas.contexts = .:.east
    mirrorflow.schemas.subject.prefix = east.
    east->west.mirrorflow.schemas.wait.topics = orders.*
    mirrorflow.schemas.wait.max.ms = 1500
    """
    findings = ConversionFindings()

    [document] = converted(REGISTRIES + lines, findings)

    planned = {
        connector.kind: connector.connector_properties
        for connector in plan(load_flow(yaml_text(document)), POD_LAYOUT).connectors
    }
    secrets = "/mnt/mirrorflow/secrets"
    of_schemas = {
        "source.cluster.schema.registry.url": "https://registry-east:8081",
        "source.cluster.schema.registry.basic.auth.user.info": f"mirror:${{dir:{secrets}/east-registry:password}}",
        "source.cluster.schema.registry.ssl.truststore.location": f"{secrets}/east-registry-ca/ca.crt",
        "source.cluster.schema.registry.ssl.truststore.type": "PEM",
        "source.cluster.schema.registry.ssl.endpoint.identification.algorithm": "",
        "target.cluster.schema.registry.url": "http://registry-west:8081",
        "target.cluster.schema.registry.bearer.auth.token": f"${{dir:{secrets}/west-registry:token}}",
        "mirrorflow.schemas.subjects": "orders.*,payments",
        "mirrorflow.schemas.contexts": ".:.east",
        "mirrorflow.schemas.subject.prefix": "east.",
    }
    wait = {"mirrorflow.schemas.wait.topics": "orders.*", "mirrorflow.schemas.wait.max.ms": "2000"}
    for kind, expected in ((ConnectorKind.SCHEMAS, of_schemas), (ConnectorKind.SOURCE, of_schemas | wait)):
        assert expected == {key: value for key, value in planned[kind].items() if "schema" in key}
    assert [] == [loss for loss in findings.losses if "schema" in loss.setting]
    assert "hidden" not in f"{document}{findings}"
    origins = {f"{secret.secret}/{secret.key}": secret.origin for secret in findings.secrets}
    assert {"east-registry-ca/ca.crt", "east-registry/password", "west-registry/token"} == origins.keys()
    assert (
        "the authorities of east.schema.registry.ssl.truststore.location /certs/east.jks, as PEM"
        in origins["east-registry-ca/ca.crt"]
    )


def test_a_reference_may_hold_the_user_and_the_password_of_a_registry() -> None:
    reference = "${file:/run/registry.properties:user}"
    findings = ConversionFindings()

    [document] = converted(
        f"{REGISTRIES}{FILE_PROVIDER}east.schema.registry.basic.auth.user.info = {reference}\n", findings
    )

    assert {
        "type": "Basic",
        "username": {"secretName": "east-registry", "key": "username"},
        "password": {"secretName": "east-registry", "key": "password"},
    } == document["spec"]["schemas"]["source"]["authentication"]
    assert {f"the user in {reference}", f"the password in {reference}"} == {
        secret.origin for secret in findings.secrets
    }


@pytest.mark.parametrize(
    ("line", "setting", "is_refused"),
    [
        ("east.schema.registry.url = ", "west.schema.registry.url", False),
        ("north.schema.registry.url = http://registry-north", "north.schema.registry.url", False),
        ("east.schema.registry.ssl.keystore.location = /x.jks", "east.schema.registry.ssl.keystore.location", False),
        ("east.schema.registry.basic.auth.user.info = mirror", "east.schema.registry.basic.auth.user.info", True),
        ("east.schema.registry.url = http://mirror:hidden@registry", "east.schema.registry.url", True),
    ],
)  # fmt: skip
def test_settings_of_a_registry_without_a_field_are_listed(
    line: str, setting: str, *, is_refused: bool
) -> None:
    findings = ConversionFindings()

    with contextlib.suppress(UsageError):
        converted(f"{REGISTRIES}{line}\n", findings)

    assert (setting, is_refused) in {(loss.setting, loss.refused) for loss in findings.losses}
    assert "hidden" not in f"{findings}"


def test_a_setting_of_a_client_that_has_no_effect_in_java_is_listed_once() -> None:
    findings = ConversionFindings()
    lines = "A.isolation.level = read_committed\nA->B.auto.offset.reset = latest\nB.transaction.timeout.ms = 90000\n"
    source = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n"

    converted(source + lines, findings)

    assert ["A->B.auto.offset.reset", "A.isolation.level", "B.transaction.timeout.ms"] == sorted(
        loss.setting for loss in findings.losses
    )


def test_characters_beyond_latin_1_are_escaped_in_an_export() -> None:
    """Java reads an mm2.properties as Latin-1, in which the bytes of UTF-8 are other characters."""
    written = text({"clusters": "A, B", "A->B.groups": "größe-配送", "A.client.rack": " r\\1"})

    assert written.isascii()
    assert {"clusters": "A, B", "A->B.groups": "größe-配送", "A.client.rack": " r\\1"} == parse_properties(
        written.encode().decode("latin-1")
    )
