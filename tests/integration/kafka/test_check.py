"""`mirrorflow check` against brokers with passwords and ACLs reports the problems of a `run`, and changes nothing."""

import contextlib
import io
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_kafka.admin import admin
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import free_port, wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.comparing import assert_copied
from tests.integration.kafka.flows import call_cluster
from tests.integration.kafka.groups import group_offsets, put_group
from tests.integration.kafka.running import RunningCommand, beats

COMMAND_WAIT_S = 240.0  # two seconds on an idle machine
PASSWORD = "mirror-secret"
FLOW = """
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {{name: checked}}
spec:
  source:
    alias: {alias}
    bootstrapServers: ["{source}"]
    authentication:
      type: Plain
      username: {{value: mirror}}
      password: {{secretName: of-source, key: password}}
  target:
    alias: gated
    bootstrapServers: ["{target}"]
    authentication:
      type: ScramSha512
      username: {{value: mirror}}
      password: {{secretName: of-target, key: password}}
  topics: {{include: ["{topics}"], acls: {{sync: Apply}}}}
  groups: {{include: ["{topics}-readers"]}}
  connectors:
    source: {{config: {{refresh.topics.interval.seconds: "1"}}}}
    checkpoint:
      config:
        refresh.groups.interval.seconds: "1"
        emit.checkpoints.interval.seconds: "1"
        sync.group.offsets.interval.seconds: "1"
"""

Names = Callable[[], str]
TOPIC_WRITE_DENIED = AclBinding(
    resource_type=2,
    resource_name="",
    pattern_type=3,
    principal="User:mirror",
    host="*",
    operation=4,
    permission_type=2,
)


@pytest.fixture(scope="module")
def walled() -> Iterator[KafkaCluster]:
    """A source that requires a password and grants nothing by default."""
    with KafkaCluster(name="walled", listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gated() -> Iterator[KafkaCluster]:
    """A target that requires a password and grants nothing by default."""
    with KafkaCluster(name="gated", listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Grant:
    """An operation that `mirrorflow acls` prints."""

    side: str
    kind: str
    name: str
    operation: str
    prefixed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFlow:
    """A flow from *walled* to *gated* with its own file, and commands for it."""

    source: KafkaCluster
    target: KafkaCluster
    topic: str
    folder: Path

    @property
    def alias(self) -> str:
        return self.topic.upper()

    @property
    def group(self) -> str:
        return f"{self.topic}-readers"

    def running(self) -> RunningCommand:
        """Returns `mirrorflow run` of the file."""
        return RunningCommand(self.folder / "flow.yaml", self.folder, "--secrets", self.folder)

    def command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `mirrorflow` *name* with the file."""
        file = ["-f", str(self.folder / "flow.yaml"), "--secrets", str(self.folder)]
        return subprocess.run(
            [sys.executable, "-m", "mirrorflow_cli", name, *file, *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_WAIT_S,
            check=False,
            env={"HOME": str(self.folder)},
        )

    def grants(self) -> list[Grant]:
        """Returns each operation of each command that `mirrorflow acls` prints. It starts no process."""
        side, grants = "", []
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert 0 == main(["acls", "-f", str(self.folder / "flow.yaml"), "--secrets", str(self.folder)])
        for line in printed.getvalue().splitlines():
            if line.startswith("#"):
                side = "source" if ", source " in line else "target"
            else:
                grants += _grants(side, line)
        return list(dict.fromkeys(grants))

    def grant(self, grants: list[Grant]) -> None:
        """Creates the grants as ACLs."""
        for side, cluster in (("source", self.source), ("target", self.target)):
            cluster.allow_all(
                (grant.operation, grant.kind, grant.name, grant.prefixed)
                for grant in grants
                if grant.side == side
            )

    def write(
        self, *, source: str = "", target: str = "", passwords: tuple[str, str] = (PASSWORD, PASSWORD)
    ) -> None:
        """Writes the file and its secrets. *source* and *target* replace the clusters' addresses."""
        text = FLOW.format(
            alias=self.alias,
            source=source or self.source.bootstrap,
            target=target or self.target.bootstrap,
            topics=self.topic,
        )
        (self.folder / "flow.yaml").write_text(text)
        for side, password in zip(("source", "target"), passwords, strict=True):
            secret = self.folder / f"of-{side}" / "password"
            secret.parent.mkdir(exist_ok=True)
            secret.write_text(password)


def _grants(side: str, line: str) -> list[Grant]:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--operation", action="append")
    for flag in (
        "bootstrap-server",
        "allow-principal",
        "topic",
        "group",
        "transactional-id",
        "resource-pattern-type",
    ):
        parser.add_argument(f"--{flag}")
    for flag in ("add", "cluster"):
        parser.add_argument(f"--{flag}", action="store_true")
    program, *arguments = shlex.split(line)
    parsed = parser.parse_args(arguments)
    assert (program, parsed.add, parsed.allow_principal) == ("kafka-acls.sh", True, "User:mirror")
    kind, name = ("TOPIC", parsed.topic) if parsed.topic else ("TRANSACTIONAL_ID", parsed.transactional_id)
    if parsed.group:
        kind, name = "GROUP", parsed.group
    if parsed.cluster:
        kind, name = "CLUSTER", "kafka-cluster"
    return [
        Grant(
            side=side,
            kind=kind,
            name=name,
            operation="".join(f"_{letter}" if letter.isupper() else letter for letter in operation)
            .strip("_")
            .upper(),
            prefixed=parsed.resource_pattern_type == "prefixed",
        )
        for operation in parsed.operation
    ]


@pytest.fixture
def checked(walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path) -> CheckedFlow:
    """A flow of one topic with 200 records; nothing is granted yet."""
    topic = walled.create_topic(unique_topic(), partitions=2, config={"retention.ms": "86400000"})
    load(walled, topic, 200, keys=True)
    flow = CheckedFlow(source=walled, target=gated, topic=topic, folder=tmp_path)
    flow.write()
    return flow


def test_the_printed_grants_suffice_and_check_creates_nothing(
    checked: CheckedFlow,
) -> None:
    """`check` lists what would be created, but creates nothing. Afterwards, the flow copies all records."""
    checked.grant(checked.grants())
    before = (checked.source.topics(), checked.target.topics())

    first = checked.command("check")
    assert (0, "") == (first.returncode, first.stderr), first.stdout
    assert "ok    gated gives exactly-once to readers of committed records" in first.stdout
    assert before == (checked.source.topics(), checked.target.topics())
    created = {
        line.partition("would create: ")[2] for line in first.stdout.splitlines() if "would create" in line
    }
    names = ("claims", "identity", "offsets", "offset-syncs", "offset-map")
    internal = {f"mm2-{name}.{checked.alias}.internal" for name in names}
    other_topics = {f"{checked.alias}.checkpoints.internal"}
    other_topics |= {f"heartbeats of {checked.alias}"} if "heartbeats" not in before[0] else set()
    other_topics |= {"heartbeats"} if "heartbeats" not in before[1] else set()
    assert {f"{checked.alias}.{checked.topic}"} | internal | other_topics == created

    result = checked.command("run", "--until-caught-up", "--log", "-")
    assert result.returncode == 0, result.stdout + result.stderr
    assert_copied(
        checked.source, checked.topic, checked.target, f"{checked.alias}.{checked.topic}", count=200
    )


def test_the_printed_grants_suffice_for_checkpoints_groups_and_heartbeats(
    checked: CheckedFlow,
) -> None:
    """`run` with all three connectors translates the group and writes heartbeats to both clusters.

    Afterwards, `check` reports nothing new.
    """
    checked.grant(checked.grants())
    put_group(checked.source, checked.group, {(checked.topic, 0): 40})
    remote = f"{checked.alias}.{checked.topic}"

    with checked.running() as run:
        wait_until("the group is translated", lambda: run.moved_offsets)
        for cluster in (checked.source, checked.target):
            wait_until("heartbeats arrive", partial(beats, cluster))
        copy = f"{checked.alias}.heartbeats"
        wait_until("heartbeats are copied", lambda: checked.target.has_topic(copy))
        for name in ("MirrorCheckpointConnector", "MirrorHeartbeatConnector"):
            wait_until(f"{name} is running", partial(run.is_running, name))
            assert ("", 0) == (run.companion(name)["message"], run.companion(name)["warningsTotal"]), (
                run.output()
            )
        assert 130 == run.stop(), run.output()

    assert {(remote, 0)} == set(group_offsets(checked.target, checked.group))
    second = checked.command("check")
    assert (0, "") == (second.returncode, second.stderr), second.stdout
    assert "would" not in second.stdout


def test_heartbeats_that_the_source_refuses_are_reported_and_copying_continues(checked: CheckedFlow) -> None:
    """`check` notes it and succeeds.

    `run` reports the broker's refusal, copies records, and emits the other heartbeats.
    """
    checked.grant(checked.grants())
    denied = replace(TOPIC_WRITE_DENIED, resource_name="heartbeats")
    call_cluster(checked.source, lambda connected: admin.create_acls(connected, [denied]))
    refused = f"Cluster {checked.alias} does not authorize Write on topic heartbeats"
    try:
        result = checked.command("check")
        assert 0 == result.returncode, result.stdout
        assert f"note  No heartbeats to {checked.alias}: {refused}" in result.stdout

        with checked.running() as run:
            wait_until(
                "the refusal is reported",
                lambda: refused in str(run.companion("MirrorHeartbeatConnector").get("warnings")),
            )
            remote = f"{checked.alias}.{checked.topic}"
            wait_until(
                "all records are copied",
                lambda: sum(checked.target.end_offsets(remote).values()) == 200,
            )
            wait_until(
                "the heartbeat connector runs",
                lambda: "RUNNING" == run.companion("MirrorHeartbeatConnector")["state"],
            )
            assert 130 == run.stop()
    finally:
        call_cluster(checked.source, lambda connected: admin.delete_acls(connected, [denied]))


MISSING = [
    # On the source and on the target: kind, name after the alias, operation.
    ("READ", ("TOPIC", "{alias}.", "WRITE"), "Write on topic {alias}.{topic}"),
    ("DESCRIBE_CONFIGS", ("TOPIC", "{alias}.", "CREATE"), "Create on topic {alias}.{topic}"),
    (
        "READ",
        ("TOPIC", "mm2-offset-map.{alias}.internal", "READ"),
        "Read on topic mm2-offset-map.{alias}.internal",
    ),
    ("READ", ("GROUP", "{topic}-readers", "READ"), "Read on group {topic}-readers"),
]
MORE_MISSING = [
    ("READ", ("TOPIC", "{alias}.", "READ"), "Read on topic {alias}.{topic}"),
    ("READ", ("TOPIC", "{alias}.", "ALTER"), "Alter on topic {alias}.{topic}"),
    ("READ", ("TOPIC", "{alias}.", "ALTER_CONFIGS"), "AlterConfigs on topic {alias}.{topic}"),
    (
        "READ",
        ("TOPIC", "mm2-offsets.{alias}.internal", "DESCRIBE_CONFIGS"),
        "DescribeConfigs on topic mm2-offsets.{alias}.internal",
    ),
    (
        "READ",
        ("TOPIC", "mm2-claims.{alias}.internal", "CREATE"),
        "Create on topic mm2-claims.{alias}.internal",
    ),
    (
        "READ",
        ("TOPIC", "mm2-offset-syncs.{alias}.internal", "WRITE"),
        "Write on topic mm2-offset-syncs.{alias}.internal",
    ),
]


@pytest.mark.parametrize(
    ("lacking", "target", "named"),
    [*MISSING, *(pytest.param(*case, marks=pytest.mark.more) for case in MORE_MISSING)],
)
def test_a_missing_grant_is_reported_with_cluster_operation_and_resource(
    checked: CheckedFlow, lacking: str, target: tuple[str, str, str], named: str
) -> None:
    """One grant is missing on each side, so `check` reports exactly two findings."""
    kind, name, operation = target
    missing = {
        ("source", "TOPIC", checked.topic, lacking),
        ("target", kind, name.format(alias=checked.alias, topic=checked.topic), operation),
    }
    put_group(checked.source, checked.group, {(checked.topic, 0): 1})
    grants = checked.grants()
    granted = [
        grant for grant in grants if (grant.side, grant.kind, grant.name, grant.operation) not in missing
    ]
    assert len(grants) - len(missing) == len(granted)
    checked.grant(granted)

    result = checked.command("check")

    assert (1, "") == (result.returncode, result.stderr), result.stdout
    operation_name = {"READ": "Read", "DESCRIBE_CONFIGS": "DescribeConfigs"}[lacking]
    target_permission = named.format(alias=checked.alias, topic=checked.topic)
    # A copy of heartbeats that an earlier flow has written to the source has the same prefix.
    failures = [
        line.split(";")[0].removesuffix(" and 1 more").replace(".heartbeats", f".{checked.topic}")
        for line in result.stdout.splitlines()
        if line.startswith("fail")
    ]
    assert [
        f"fail  Cluster {checked.alias} does not authorize {operation_name} on topic {checked.topic}",
        f"fail  Cluster gated does not authorize {target_permission}",
    ] == failures


def test_a_flow_that_may_not_use_its_transactional_ids_is_at_least_once(checked: CheckedFlow) -> None:
    """The flow can run even without the claims topic. A note shows the ACL to grant."""
    checked.grant(
        [
            grant
            for grant in checked.grants()
            if grant.kind != "TRANSACTIONAL_ID" and "mm2-claims" not in grant.name
        ]
    )

    result = checked.command("check")

    assert (0, "") == (result.returncode, result.stderr), result.stdout
    assert (
        f"note  gated gives at-least-once, because gated does not grant Write on transactional ids that begin with "
        f"mirrorflow:{checked.alias}:"
    ) in result.stdout


@pytest.mark.parametrize(
    ("side", "operation", "named"),
    [("source", 8, "Describe"), ("target", 8, "Describe"), ("target", 7, "Alter")],
)
def test_a_missing_cluster_permission_is_reported(
    checked: CheckedFlow, side: str, operation: int, named: str
) -> None:
    """A deny ACL is used, because other tests may have granted the permission, which applies to all flows."""
    checked.grant(checked.grants())
    cluster = checked.source if side == "source" else checked.target
    denied = AclBinding(
        resource_type=4,
        resource_name="kafka-cluster",
        pattern_type=3,
        principal="User:mirror",
        host="*",
        operation=operation,
        permission_type=2,
    )
    call_cluster(cluster, lambda connected: admin.create_acls(connected, [denied]))
    try:
        result = checked.command("check")
    finally:
        call_cluster(cluster, lambda connected: admin.delete_acls(connected, [denied]))

    alias = checked.alias if side == "source" else "gated"
    message = f"Cluster {alias} does not authorize {named} on the cluster itself (kafka-acls --cluster)"
    assert [f"fail  {message}"] == [
        line.split(";")[0] for line in result.stdout.splitlines() if line.startswith("fail")
    ]


def test_a_configured_group_without_describe_is_reported(checked: CheckedFlow) -> None:
    """No list contains such a group, so groups that are configured by name are described."""
    hidden = ("source", "GROUP", checked.group, "DESCRIBE")
    grants = checked.grants()
    checked.grant(
        [grant for grant in grants if (grant.side, grant.kind, grant.name, grant.operation) != hidden]
    )

    result = checked.command("check")

    message = f"Cluster {checked.alias} does not authorize Describe on group {checked.group}"
    assert [f"fail  {message}"] == [
        line.split(";")[0] for line in result.stdout.splitlines() if line.startswith("fail")
    ]


def test_a_configured_topic_without_describe_is_reported(checked: CheckedFlow) -> None:
    """Nothing is granted on the source. The configured topic is described, and the missing Describe is reported."""
    granted_kinds = {"CLUSTER", "GROUP"}
    checked.grant(
        [grant for grant in checked.grants() if grant.side == "target" or grant.kind in granted_kinds]
    )

    result = checked.command("check")

    assert result.returncode == 1
    message = (
        f"Cluster {checked.alias} does not authorize Describe on topic {checked.topic}; `mirrorflow acls`"
    )
    assert [f"fail  {message}"] == [
        line.split(" prints")[0] for line in result.stdout.splitlines() if line.startswith("fail")
    ]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_wrong_password_is_reported_with_its_cluster(checked: CheckedFlow, side: str) -> None:
    """The other cluster is still checked, and no password is shown."""
    checked.grant(checked.grants())
    wrong = "hunter2-wrong"
    checked.write(passwords=(wrong, PASSWORD) if side == "source" else (PASSWORD, wrong))

    result = checked.command("check")

    cluster, alias, mechanism = (
        (checked.source, checked.alias, "PLAIN")
        if side == "source"
        else (checked.target, "gated", "SCRAM-SHA-512")
    )
    other = "gated" if side == "source" else checked.alias
    assert (1, "") == (result.returncode, result.stderr)
    (failure,) = [line for line in result.stdout.splitlines() if line.startswith("fail")]
    assert failure.startswith(
        f"fail  Cluster {alias} at {cluster.bootstrap}: {mechanism} authentication failed: "
    )
    assert f"ok    {other} is cluster" in result.stdout
    assert wrong not in result.stdout


@pytest.mark.parametrize("side", ["source", "target"])
def test_an_unreachable_cluster_is_reported_with_its_address(checked: CheckedFlow, side: str) -> None:
    """The other cluster is still checked."""
    checked.grant(checked.grants())
    address = f"127.0.0.1:{free_port()}"
    checked.write(**{side: address})  # type: ignore[arg-type]

    result = checked.command("check")

    alias, other = (checked.alias, "gated") if side == "source" else ("gated", checked.alias)
    assert (1, "") == (result.returncode, result.stderr)
    (failure,) = [line for line in result.stdout.splitlines() if line.startswith("fail")]
    assert failure.startswith(f"fail  Cluster {alias} cannot be reached at {address}: ")
    assert f"ok    {other} is cluster" in result.stdout


def test_an_alias_that_a_different_flow_owns_is_reported(checked: CheckedFlow) -> None:
    """`run` of the renamed file would be refused for the same reason."""
    checked.grant(checked.grants())
    assert 0 == checked.command("run", "--until-caught-up", "--log", "-").returncode
    file = checked.folder / "flow.yaml"
    file.write_text(file.read_text().replace("name: checked", "name: renamed"))

    result = checked.command("check")

    assert 1 == result.returncode
    assert (
        f"Target gated already receives source {checked.alias} from flow checked; this flow is renamed"
        in result.stdout
    )


def test_check_accepts_a_renamed_flow_that_names_its_earlier_name(checked: CheckedFlow) -> None:
    checked.grant(checked.grants())
    assert 0 == checked.command("run", "--until-caught-up", "--log", "-").returncode
    file = checked.folder / "flow.yaml"
    renamed = file.read_text().replace("name: checked", "name: renamed")
    file.write_text(f"{renamed}\n  takeOverFrom: [checked]\n")

    result = checked.command("check")

    assert (0, "") == (result.returncode, result.stderr), result.stdout
    assert f"This flow takes {checked.alias} over from flow checked: stop that one first." in result.stdout


@pytest.mark.parametrize(
    ("denied", "status", "message"),
    [
        (
            "ALTER_CONFIGS",
            1,
            "fail  Topic {name} on gated loses records of this flow with time, and its settings",
        ),
        ("DESCRIBE_CONFIGS", 0, "note  The retention of topic {name} on gated cannot be read without"),
    ],
)
def test_a_claims_topic_without_compaction_is_reported_with_the_remedy(
    checked: CheckedFlow, denied: str, status: int, message: str
) -> None:
    """The topic was created with cleanup.policy=delete. The command does not change it."""
    checked.grant(checked.grants())
    name = f"mm2-claims.{checked.alias}.internal"
    checked.target.create_topic(name, config={"cleanup.policy": "delete"})
    checked.target.allow(denied, "TOPIC", name, deny=True)

    result = checked.command("check")

    assert (status, "") == (result.returncode, result.stderr), result.stdout
    assert message.format(name=name) in result.stdout
    assert ("--add-config cleanup.policy=compact." in result.stdout) == bool(status)
    assert checked.target.topic_config(name)["cleanup.policy"] == "delete"


def test_a_target_without_transactions_is_reported_as_at_least_once(
    east: KafkaCluster, unique_topic: Callable[[], str]
) -> None:
    """The flow may still run."""
    topic = east.create_topic(unique_topic())
    with KafkaCluster(name="plain", config={"transaction.state.log.replication.factor": "3"}) as target:
        addresses = ["--from", east.internal_bootstrap, "--to", target.internal_bootstrap]
        result = subprocess.run(
            [sys.executable, "-m", "mirrorflow_cli", "check", *addresses, "--topics", topic],
            capture_output=True,
            text=True,
            timeout=COMMAND_WAIT_S,
            check=False,
        )

    assert (0, "") == (result.returncode, result.stderr), result.stdout
    assert (
        "note  target gives at-least-once, because target has fewer brokers than "
        "transaction.state.log.replication.factor, so it has no transactions"
    ) in result.stdout
