"""mm2.properties to MirrorFlows and back: the same effective settings, or a line that says which are not."""

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
from mirrorflow_core.setting_table import KEYS, Scope
from mirrorflow_operator.api.load import load_flow, parse_flow
from mirrorflow_operator.api.spec import State
from mirrorflow_operator.plan.properties import POD_LAYOUT, SecretLayout, plan
from mirrorflow_replicator.config.dedicated_mode import load_mm2
from tests.unit.cli.effective import effective, emitting
from tests.unit.cli.mm2_blocks import BLOCKS

TWO = BLOCKS["shared configuration"]
# What a block asks for and the resource cannot say: setting of the settings object -> the line that says so.
ANNOUNCED = {
    "config of a flow": {"topics_exclude": "topics.exclude", "topics": "topics.exclude"},
    "clients": {
        "source_admin": "primary.admin.bootstrap.servers",
        "admin": "primary.admin.bootstrap.servers",
        "beats": "primary.admin.bootstrap.servers",
    },
}


def there_and_back(
    source: str, layout: SecretLayout = POD_LAYOUT
) -> tuple[str, ConversionFindings, list[str]]:
    """The text that comes back, what conversion found, and what export could not say."""
    findings = ConversionFindings()
    documents = [load_flow(yaml_text(one)) for one in converted(source, findings)]
    out = exported(documents, layout)
    return text(out.lines), findings, out.losses


def differences(source: str, back: str) -> dict[str, tuple[Any, Any]]:
    before, after = effective(source), effective(back)
    lost = emitting(source) - emitting(back)  # which has a test of its own
    before = {
        key: value for key, value in before.items() if key.partition(".")[0] not in lost or key in after
    }
    assert before.keys() == after.keys()
    return {key: (value, after[key]) for key, value in before.items() if value != after[key]}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_comes_back_with_the_same_effective_settings(name: str) -> None:
    """All but what conversion has listed."""
    back, findings, losses = there_and_back(BLOCKS[name])

    different = {key.rpartition(".")[2] for key in differences(BLOCKS[name], back)}
    listed = {loss.setting for loss in findings.losses}
    assert different <= ANNOUNCED.get(name, {}).keys()
    assert {ANNOUNCED[name][key] for key in different} <= listed
    assert [] == losses


@pytest.mark.parametrize("name", BLOCKS)
def test_heartbeats_are_emitted_between_the_same_clusters(name: str) -> None:
    """But for pairs without a flow in either direction, which are listed."""
    back, findings, _ = there_and_back(BLOCKS[name])

    lost = emitting(BLOCKS[name]) - emitting(back)
    assert set() == emitting(back) - emitting(BLOCKS[name])
    told = " ".join(loss.why for loss in findings.losses if loss.setting == "emit.heartbeats.enabled")
    assert all(pair in told for pair in lost)
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
def test_any_mix_of_settings_comes_back(lines: dict[str, str]) -> None:
    """Nothing that has a counterpart is lost, whatever stands beside it."""
    source = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n"
    silent = lines.get("A->B.emit.offset-syncs.enabled") == "false"
    source += "".join(
        f"{key} = {value.replace(chr(92), chr(92) * 2)}\n"
        for key, value in lines.items()
        # MM2 refuses what is said of syncs that are not written.
        if not (silent and "offset-syncs.topic." in key)
    )

    back, findings, _ = there_and_back(source)

    told = {loss.setting for loss in findings.losses if loss.flow == "B->A"}
    interval = "emit.heartbeats.interval.seconds" in told
    # The start offset is a separate field, which overrides the consumer's setting.
    assert {} == {
        key: pair
        for key, pair in differences(source, back).items()
        if not (key.endswith("source_consumer") and _without_reset(pair[0]) == _without_reset(pair[1]))
        and not (key == "B->A.heartbeat.interval_s" and interval)
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


def test_secrets_come_back_from_the_files_that_were_asked_for(tmp_path: Path) -> None:
    """Each listed file, filled as the list says, gives the same logins; none of its content is in any text."""
    plain = SECURED.replace("${file:/etc/b.properties:password}", "hunter2")
    layout = SecretLayout(secrets=str(tmp_path), config_maps=str(tmp_path))
    back, findings, _ = there_and_back(SECURED, layout)
    said = "\n".join([back, *report(findings)])
    for secret in findings.secrets:
        (tmp_path / secret.secret).mkdir(exist_ok=True)
        (tmp_path / secret.secret / secret.key).write_text("hunter2")

    assert {} == differences(plain, back)
    assert "hunter2" not in said
    assert {
        "a-ca/ca.crt": "the authorities of A.ssl.truststore.location /etc/a.jks, as PEM",
        "a-mirror/password": "option password of A.sasl.jaas.config",
        "b-mirror/password": "${file:/etc/b.properties:password}",
    } == {f"{one.secret}/{one.key}": one.origin for one in findings.secrets}


def test_client_certificate_and_password_at_once_need_java_s_own_words() -> None:
    """What no named type can say becomes Custom, by reference too."""
    source = SECURED + "A.ssl.keystore.location = /etc/a.p12\nA.ssl.keystore.password = hunter2\n"
    findings = ConversionFindings()

    one = converted(source, findings)[0]

    authentication = one["spec"]["source"]["authentication"]
    assert ("Custom", True) == (authentication["type"], authentication["sasl"])
    assert "${dir:/mnt/mirrorflow/secrets/a-client:tls.key}" == authentication["config"]["ssl.keystore.key"]
    assert (
        'password="${dir:/mnt/mirrorflow/secrets/a-mirror:password}"'
        in (authentication["config"]["sasl.jaas.config"])
    )
    assert "hunter2" not in yaml_text(one)


def test_alias_of_one_flow_alone_is_the_one_that_counts() -> None:
    """Topics and positions are named by it; the offsets topic is still named by the file's."""
    source = TWO + "A->B.source.cluster.alias = east\n"
    one = parse_flow(converted(source, ConversionFindings())[0])
    before = load_mm2(source)[0].connectors[0].source

    assert before is not None
    assert (before.source_alias, before.flow) == ("east", "east->B")
    assert "east" == one.spec.source.alias
    assert {"mirrorflow.flow": before.flow, "offset.storage.topic": before.offsets.topic}.items() <= (
        one.spec.connectors.source.config.items()
    )


def test_flow_keeps_what_positions_hang_on() -> None:
    """Aliases, connector name, offsets topic, policy, separator: as the plan of the converted flow has them."""
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


def test_paused_flow_with_a_takeover_comes_back() -> None:
    """Both have fields of the resource, so `config` would be refused."""
    source = TWO + "A->B.mirrorflow.state = Paused\nA->B.mirrorflow.takeover.from = x->B, y->B\n"
    spec = parse_flow(converted(source, ConversionFindings())[0]).spec
    back, _, losses = there_and_back(source)

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
def test_what_would_copy_something_else_is_refused(line: str) -> None:
    """By its name, and nothing is converted."""
    with pytest.raises(UsageError, match=line.partition(" =")[0].removeprefix("A->B.").replace(".", r"\.")):
        converted(TWO + line + "\n", ConversionFindings())


def test_all_refusals_are_told_at_once() -> None:
    """One run finds all of them."""
    with pytest.raises(UsageError) as raised:
        converted(TWO + "transforms = drop\nA->B.errors.tolerance = all\n", ConversionFindings())

    assert "transforms" in str(raised.value)
    assert "errors.tolerance" in str(raised.value)


VALUES = ("7", "false", "true", "x", "target", "latest", "target, source", "IdentityReplicationPolicy")
PLACES = (
    (Scope.CONNECTOR, ("A->B.", "")),
    (Scope.WORKER, ("B.",)),
    (Scope.REST, ("",)),
    (Scope.DRIVER, ("",)),
    (Scope.CLIENT, ("A.consumer.", "B.producer.", "A.admin.")),
)


def told(source: str) -> Any:
    findings = ConversionFindings()
    try:
        return converted(source, findings), findings
    except UsageError as error:
        return str(error)


@pytest.mark.parametrize(("scope", "prefixes"), PLACES, ids=lambda value: getattr(value, "name", ""))
def test_no_known_setting_is_passed_over_in_silence(scope: Scope, prefixes: tuple[str, ...]) -> None:
    """Of each key some value changes the flow, is listed, or is refused; but for the class and the switch of a flow."""
    plain = TWO.replace("A->B.topics = foo\n", "")
    nothing = told(plain)
    silent = [
        prefix + key.name
        for key in KEYS
        for prefix in prefixes
        if key.scope is scope and "*" not in key.name
        if all(told(f"{plain}{prefix}{key.name} = {value}\n") == nothing for value in VALUES)
    ]

    # Aliases at the top level are those of no cluster; where the file is a worker's, they are its own.
    structure = {"connector.class", "A->B.connector.class", "source.cluster.alias", "target.cluster.alias"}
    assert set() == set(silent) - structure


@pytest.fixture
def mirrorflow(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command: (exit status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(list(arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_command_writes_files_and_says_what_is_left(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Files that `validate` and `export` take; the list on stderr, with reasons."""
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


def test_command_speaks_json(mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """One object, without the values of secrets."""
    source = tmp_path / "mm2.properties"
    source.write_text(SECURED + "metric.reporters = com.example.Reporter\n")

    status, out, err = mirrorflow("convert", str(source), "--json")

    said = json.loads(out)
    assert (0, "") == (status, err)
    assert ["a-to-b"] == [one["metadata"]["name"] for one in said["flows"]]
    assert {"secretName": "a-mirror", "key": "password"}.items() <= said["secrets"][1].items()
    assert {"flow": "A->B", "setting": "metric.reporters"}.items() <= next(
        one.items() for one in said["unsupported"] if one["setting"] == "metric.reporters"
    )
    assert "hunter2" not in out


def test_file_without_a_flow_is_named(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Status 2 and one sentence."""
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
def test_a_template_has_to_be_rendered_first(
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
def test_the_identity_policy_beside_an_empty_separator_becomes_a_valid_flow(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path, text: str
) -> None:
    """Many files have both."""
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
def test_a_quantifier_with_a_comma_is_not_converted(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path, text: str
) -> None:
    """MM2 would split it."""
    source = tmp_path / "source"
    source.write_text(text)

    status, out, err = mirrorflow("convert", str(source))

    assert (status, out) == (2, "")
    assert "one that holds a comma, as in {1,3}, is split there" in err


def test_an_exception_for_an_expression_that_ends_in_a_question_mark_is_converted_as_it_is_read() -> None:
    """`?:` separates topics from settings; the colon of `(?:` does not."""
    line = r"A->B.mirrorflow.config.properties.exclude.by.topic = orders.?:retention\\.ms, (?:a|b):(?:c|d)"

    (document,) = converted(f"{TWO}\n{line}\n", ConversionFindings())

    assert document["spec"]["topics"]["configs"]["exceptions"] == [
        {"topics": ["orders.?"], "exclude": [r"retention\.ms"]},
        {"topics": ["(?:a|b)"], "exclude": ["(?:c|d)"]},
    ]


def test_braces_in_a_comment_are_no_template(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    source = tmp_path / "mm2.properties"
    source.write_text("  # was {{ .Values.topics }}\n" + TWO)

    assert mirrorflow("convert", str(source))[0] == 0


def test_flows_that_reach_a_cluster_in_two_ways_do_not_share_a_file() -> None:
    """An mm2.properties knows each cluster once."""
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
def test_a_comment_behind_an_expression_is_read_in_one_way_and_warned_of(key: str) -> None:
    """By each name of a setting, and as `mirrorflow-replicator mm2` reads it."""
    text = f"{TWO}A->B.{key} = .*-tmp # all\n".replace("A->B.topics = foo\n", "")
    findings = ConversionFindings()

    [one] = converted(text, findings)

    spec = one["spec"]["groups" if key.startswith("groups") else "topics"]
    assert ".*-tmp # all" in (spec.get("exclude") or spec["include"])
    assert f"A->B.{key}: {COMMENT}" in findings.warnings
    assert f"A->B.{key}: {COMMENT}" in load_mm2(text)[0].warnings
    assert f"  A->B.{key}: {COMMENT}" in list(report(findings))


def test_what_the_reader_remarks_is_part_of_the_report(
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


def test_unknown_settings_of_clients_are_left_out_and_named_once(
    mirrorflow: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Java ignores them, and a MirrorFlow with one is refused."""
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
def test_the_number_of_tasks_is_used_and_not_called_unknown(line: str) -> None:
    findings = ConversionFindings()

    [one] = converted(f"{TWO}{line}\n", findings)

    assert one["spec"]["connectors"]["source"]["tasks"] == 4
    assert "tasks.max" not in {loss.setting for loss in findings.losses}


@pytest.mark.parametrize(
    "line", ["source.cluster.alias = east", "A->B.source.cluster.alias = east", "A.alias = east"]
)
def test_another_alias_is_used_and_not_called_without_effect(line: str) -> None:
    """Each is an alias in topics and stored offsets, as in MM2."""
    plain, findings = ConversionFindings(), ConversionFindings()
    converted(TWO, plain)

    [one] = converted(f"{TWO}{line}\n", findings)

    assert one["spec"]["source"]["alias"] == "east"
    assert [(loss.setting, loss.why) for loss in findings.losses] == [
        (loss.setting, loss.why) for loss in plain.losses
    ]


def test_a_setting_of_flows_at_a_cluster_is_named_with_its_place() -> None:
    findings = ConversionFindings()
    converted(f"{TWO}B.tasks.max = 4\n", findings)

    assert [loss.why for loss in findings.losses if "tasks.max" in loss.setting] == [
        "it has no effect for a cluster; write it for a flow, as A->B.tasks.max"
    ]


RECIPE = "source.cluster.alias =\ntarget.cluster.alias =\nreplication.policy.separator =\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            RECIPE,
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
def test_what_is_missing_is_named_in_the_words_of_the_file(lines: str, expected: str) -> None:
    """No regular expression, no wording of a library."""
    providers = "config.providers = env\nconfig.providers.env.class = EnvVarConfigProvider\n"

    with pytest.raises(UsageError) as raised:
        converted(TWO + providers + lines, ConversionFindings())

    assert expected in re.sub(r"line \d+", "line N", str(raised.value))


def test_names_of_groups_and_secrets_are_no_placeholders() -> None:
    """A renaming may refer to a group of its expression by name, and a password may have any characters."""
    renaming = {
        "": "r",
        ".r.type": "org.apache.kafka.connect.transforms.RegexRouter",
        ".r.regex": "(?<n>.*)",
        ".r.replacement": "${n}",
    }
    lines = "".join(f"A->B.transforms{key} = {value}\n" for key, value in renaming.items())

    [one] = converted(f"{TWO}{lines}A.ssl.truststore.password = ${{PASSWORD}}\n", ConversionFindings())

    assert one["spec"]["connectors"]["source"]["config"]["transforms.r.replacement"] == "${n}"
