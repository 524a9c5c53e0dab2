"""`mirrorflow check` against brokers with passwords and ACLs: what it says is what `run` would meet, and it changes nothing."""

import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from mirrorflow_core.topic_acls import AclBinding
from mirrorflow_kafka.admin import admin
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import free_port, wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.comparing import assert_copied
from tests.integration.kafka.flows import call_cluster
from tests.integration.kafka.groups import group_offsets, put_group
from tests.integration.kafka.running import RunningCommand, beats

COMMAND_WAIT_S = 240.0  # two seconds alone
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
    """A source that wants a password and grants nothing by itself."""
    with KafkaCluster(name="walled", listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gated() -> Iterator[KafkaCluster]:
    """A target of the same kind."""
    with KafkaCluster(name="gated", listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Grant:
    """One operation that `mirrorflow acls` prints."""

    side: str
    kind: str
    name: str
    operation: str
    prefixed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A flow from *walled* to *gated* by a file of its own, and the command about it."""

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
        """`mirrorflow run` of the file."""
        return RunningCommand(self.folder / "flow.yaml", self.folder, "--secrets", self.folder)

    def command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What `mirrorflow` *name* says of the file."""
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
        """Each operation of each command that `mirrorflow acls` prints."""
        side, found = "", []
        for line in self.command("acls").stdout.splitlines():
            if line.startswith("#"):
                side = "source" if ", source " in line else "target"
            else:
                found += _grants(side, line)
        return list(dict.fromkeys(found))

    def grant(self, grants: list[Grant]) -> None:
        """Add them as ACLs."""
        for one in grants:
            cluster = self.source if one.side == "source" else self.target
            cluster.allow(one.operation, one.kind, one.name, prefixed=one.prefixed)

    def write(
        self, *, source: str = "", target: str = "", passwords: tuple[str, str] = (PASSWORD, PASSWORD)
    ) -> None:
        """The file and its secrets; *source* and *target* are addresses other than the clusters' own."""
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
    program, *words = shlex.split(line)
    given = parser.parse_args(words)
    assert (program, given.add, given.allow_principal) == ("kafka-acls.sh", True, "User:mirror")
    kind, name = ("TOPIC", given.topic) if given.topic else ("TRANSACTIONAL_ID", given.transactional_id)
    if given.group:
        kind, name = "GROUP", given.group
    if given.cluster:
        kind, name = "CLUSTER", "kafka-cluster"
    return [
        Grant(
            side=side,
            kind=kind,
            name=name,
            operation="".join(f"_{letter}" if letter.isupper() else letter for letter in operation)
            .strip("_")
            .upper(),
            prefixed=given.resource_pattern_type == "prefixed",
        )
        for operation in given.operation
    ]


@pytest.fixture
def checked(walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path) -> Checked:
    """A flow of one topic with 200 records; nothing is granted yet."""
    topic = walled.create_topic(unique_topic(), partitions=2, config={"retention.ms": "86400000"})
    load(walled, topic, 200, keys=True)
    flow = Checked(source=walled, target=gated, topic=topic, folder=tmp_path)
    flow.write()
    return flow


def test_the_grants_that_acls_prints_are_enough_and_nothing_is_made_before_the_flow_runs(
    checked: Checked,
) -> None:
    """Check names what would be created and creates nothing; then the flow replicates, and check has nothing to add."""
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
    beside = {f"{checked.alias}.checkpoints.internal"}
    beside |= {f"heartbeats of {checked.alias}"} if "heartbeats" not in before[0] else set()
    beside |= {"heartbeats"} if "heartbeats" not in before[1] else set()
    assert {f"{checked.alias}.{checked.topic}"} | internal | beside == created

    ran = checked.command("run", "--until-caught-up", "--log", "-")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert_copied(
        checked.source, checked.topic, checked.target, f"{checked.alias}.{checked.topic}", count=200
    )


def test_the_grants_that_acls_prints_are_enough_for_checkpoints_groups_and_heartbeats(
    checked: Checked,
) -> None:
    """All three connectors of one `run`: a group arrives, heartbeats on both sides; then check has nothing to add."""
    checked.grant(checked.grants())
    put_group(checked.source, checked.group, {(checked.topic, 0): 40})
    remote = f"{checked.alias}.{checked.topic}"

    with checked.running() as run:
        wait_until("the group was moved", lambda: run.moved)
        for cluster in (checked.source, checked.target):
            wait_until("there are heartbeats", partial(beats, cluster))
        copy = f"{checked.alias}.heartbeats"
        wait_until("they are copied", lambda: checked.target.has_topic(copy))
        for name in ("MirrorCheckpointConnector", "MirrorHeartbeatConnector"):
            wait_until(f"{name} says so", partial(run.is_running, name))
            assert ("", 0) == (run.companion(name)["message"], run.companion(name)["warningsTotal"]), (
                run.said()
            )
        assert 130 == run.stop(), run.said()

    assert {(remote, 0)} == set(group_offsets(checked.target, checked.group))
    second = checked.command("check")
    assert (0, "") == (second.returncode, second.stderr), second.stdout
    assert "would" not in second.stdout


def test_heartbeats_that_the_source_refuses_are_told_and_hold_up_nothing(checked: Checked) -> None:
    """Check notes it and ends well; `run` says it in the broker's name, copies, and the other heartbeats go on."""
    checked.grant(checked.grants())
    denied = replace(TOPIC_WRITE_DENIED, resource_name="heartbeats")
    call_cluster(checked.source, lambda connected: admin.create_acls(connected, [denied]))
    refused = f"Cluster {checked.alias} does not authorize Write on topic heartbeats"
    try:
        done = checked.command("check")
        assert 0 == done.returncode, done.stdout
        assert f"note  No heartbeats to {checked.alias}: {refused}" in done.stdout

        with checked.running() as run:
            wait_until(
                "it is reported",
                lambda: refused in str(run.companion("MirrorHeartbeatConnector").get("warnings")),
            )
            remote = f"{checked.alias}.{checked.topic}"
            wait_until(
                "everything is copied",
                lambda: sum(checked.target.end_offsets(remote).values()) == 200,
            )
            assert "RUNNING" == run.companion("MirrorHeartbeatConnector")["state"]
            assert 130 == run.stop()
    finally:
        call_cluster(checked.source, lambda connected: admin.delete_acls(connected, [denied]))


MISSING = [
    # On the source, on the target: kind, name after the alias, operation.
    ("READ", ("TOPIC", "{alias}.", "WRITE"), "Write on topic {alias}.{topic}"),
    ("DESCRIBE_CONFIGS", ("TOPIC", "{alias}.", "CREATE"), "Create on topic {alias}.{topic}"),
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
        ("TOPIC", "mm2-offset-map.{alias}.internal", "READ"),
        "Read on topic mm2-offset-map.{alias}.internal",
    ),
    (
        "READ",
        ("TOPIC", "mm2-offset-syncs.{alias}.internal", "WRITE"),
        "Write on topic mm2-offset-syncs.{alias}.internal",
    ),
    ("READ", ("GROUP", "{topic}-readers", "READ"), "Read on group {topic}-readers"),
]


@pytest.mark.parametrize(("lacking", "target", "named"), MISSING)
def test_a_grant_that_is_missing_is_named_with_its_side(
    checked: Checked, lacking: str, target: tuple[str, str, str], named: str
) -> None:
    """One on each side: two findings, each with cluster, operation and resource, and nothing else."""
    kind, name, operation = target
    missing = {
        ("source", "TOPIC", checked.topic, lacking),
        ("target", kind, name.format(alias=checked.alias, topic=checked.topic), operation),
    }
    put_group(checked.source, checked.group, {(checked.topic, 0): 1})
    grants = checked.grants()
    given = [one for one in grants if (one.side, one.kind, one.name, one.operation) not in missing]
    assert len(grants) - len(missing) == len(given)
    checked.grant(given)

    done = checked.command("check")

    assert (1, "") == (done.returncode, done.stderr), done.stdout
    words = {"READ": "Read", "DESCRIBE_CONFIGS": "DescribeConfigs"}[lacking]
    what = named.format(alias=checked.alias, topic=checked.topic)
    # The copy of heartbeats, which an earlier flow has left on the source, is one more with the same prefix.
    found = [
        line.split(";")[0].removesuffix(" and 1 more").replace(".heartbeats", f".{checked.topic}")
        for line in done.stdout.splitlines()
        if line.startswith("fail")
    ]
    assert [
        f"fail  Cluster {checked.alias} does not authorize {words} on topic {checked.topic}",
        f"fail  Cluster gated does not authorize {what}",
    ] == found


def test_a_flow_that_may_not_use_its_transactional_ids_is_at_least_once(checked: Checked) -> None:
    """It can run, also without the claims topic; a note names the ACL."""
    checked.grant(
        [one for one in checked.grants() if one.kind != "TRANSACTIONAL_ID" and "mm2-claims" not in one.name]
    )

    done = checked.command("check")

    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert (
        f"note  gated gives at-least-once, because gated does not grant Write on transactional ids that begin with "
        f"mirrorflow:{checked.alias}:"
    ) in done.stdout


@pytest.mark.parametrize(
    ("side", "operation", "named"),
    [("source", 8, "Describe"), ("target", 8, "Describe"), ("target", 7, "Alter")],
)
def test_what_the_cluster_itself_does_not_grant_is_named(
    checked: Checked, side: str, operation: int, named: str
) -> None:
    """It is the same for all flows: denied, so that what another test has granted does not count."""
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
        done = checked.command("check")
    finally:
        call_cluster(cluster, lambda connected: admin.delete_acls(connected, [denied]))

    alias = checked.alias if side == "source" else "gated"
    sentence = f"Cluster {alias} does not authorize {named} on the cluster itself (kafka-acls --cluster)"
    assert [f"fail  {sentence}"] == [
        line.split(";")[0] for line in done.stdout.splitlines() if line.startswith("fail")
    ]


def test_a_group_that_we_may_not_see_is_named(checked: Checked) -> None:
    """It is in no list: groups that are configured by name are asked for."""
    hidden = ("source", "GROUP", checked.group, "DESCRIBE")
    grants = checked.grants()
    checked.grant([one for one in grants if (one.side, one.kind, one.name, one.operation) != hidden])

    done = checked.command("check")

    sentence = f"Cluster {checked.alias} does not authorize Describe on group {checked.group}"
    assert [f"fail  {sentence}"] == [
        line.split(";")[0] for line in done.stdout.splitlines() if line.startswith("fail")
    ]


def test_a_topic_that_we_may_not_see_is_named(checked: Checked) -> None:
    """With nothing granted on the source the topic of that name is asked for, and Describe on it is what lacks."""
    seen = {"CLUSTER", "GROUP"}
    checked.grant([one for one in checked.grants() if one.side == "target" or one.kind in seen])

    done = checked.command("check")

    assert done.returncode == 1
    sentence = (
        f"Cluster {checked.alias} does not authorize Describe on topic {checked.topic}; `mirrorflow acls`"
    )
    assert [f"fail  {sentence}"] == [
        line.split(" prints")[0] for line in done.stdout.splitlines() if line.startswith("fail")
    ]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_wrong_password_is_one_sentence_that_names_the_cluster(checked: Checked, side: str) -> None:
    """The other side is looked at all the same, and no password is shown."""
    checked.grant(checked.grants())
    wrong = "hunter2-wrong"
    checked.write(passwords=(wrong, PASSWORD) if side == "source" else (PASSWORD, wrong))

    done = checked.command("check")

    cluster, alias, mechanism = (
        (checked.source, checked.alias, "PLAIN")
        if side == "source"
        else (checked.target, "gated", "SCRAM-SHA-512")
    )
    other = "gated" if side == "source" else checked.alias
    assert (1, "") == (done.returncode, done.stderr)
    (found,) = [line for line in done.stdout.splitlines() if line.startswith("fail")]
    assert found.startswith(
        f"fail  Cluster {alias} at {cluster.bootstrap}: {mechanism} authentication failed: "
    )
    assert f"ok    {other} is cluster" in done.stdout
    assert wrong not in done.stdout


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_cluster_that_cannot_be_reached_is_one_sentence_that_names_it(checked: Checked, side: str) -> None:
    """With its address; the other side is looked at all the same."""
    checked.grant(checked.grants())
    address = f"127.0.0.1:{free_port()}"
    checked.write(**{side: address})  # type: ignore[arg-type]

    done = checked.command("check")

    alias, other = (checked.alias, "gated") if side == "source" else ("gated", checked.alias)
    assert (1, "") == (done.returncode, done.stderr)
    (found,) = [line for line in done.stdout.splitlines() if line.startswith("fail")]
    assert found.startswith(f"fail  Cluster {alias} cannot be reached at {address}: ")
    assert f"ok    {other} is cluster" in done.stdout


def test_an_alias_that_another_flow_owns_is_named(checked: Checked) -> None:
    """`run` of the renamed file would refuse for the same reason."""
    checked.grant(checked.grants())
    assert 0 == checked.command("run", "--until-caught-up", "--log", "-").returncode
    file = checked.folder / "flow.yaml"
    file.write_text(file.read_text().replace("name: checked", "name: renamed"))

    found = checked.command("check")

    assert 1 == found.returncode
    assert (
        f"Target gated already receives source {checked.alias} from flow checked; this flow is renamed"
        in found.stdout
    )


def test_a_renamed_flow_is_accepted_where_it_names_its_earlier_name(checked: Checked) -> None:
    checked.grant(checked.grants())
    assert 0 == checked.command("run", "--until-caught-up", "--log", "-").returncode
    file = checked.folder / "flow.yaml"
    renamed = file.read_text().replace("name: checked", "name: renamed")
    file.write_text(f"{renamed}\n  takeOverFrom: [checked]\n")

    found = checked.command("check")

    assert (0, "") == (found.returncode, found.stderr), found.stdout
    assert f"This flow takes {checked.alias} over from flow checked: stop that one first." in found.stdout


@pytest.mark.parametrize(
    ("denied", "status", "said"),
    [
        (
            "ALTER_CONFIGS",
            1,
            "fail  Topic {name} on gated loses records of this flow with time, and its settings",
        ),
        ("DESCRIBE_CONFIGS", 0, "note  The retention of topic {name} on gated cannot be read without"),
    ],
)
def test_a_claims_topic_that_loses_its_records_is_named_with_the_cure(
    checked: Checked, denied: str, status: int, said: str
) -> None:
    """It was created without compaction; the command changes nothing."""
    checked.grant(checked.grants())
    name = f"mm2-claims.{checked.alias}.internal"
    checked.target.create_topic(name, config={"cleanup.policy": "delete"})
    checked.target.allow(denied, "TOPIC", name, deny=True)

    done = checked.command("check")

    assert (status, "") == (done.returncode, done.stderr), done.stdout
    assert said.format(name=name) in done.stdout
    assert ("--add-config cleanup.policy=compact." in done.stdout) == bool(status)
    assert checked.target.topic_config(name)["cleanup.policy"] == "delete"


def test_a_target_that_cannot_coordinate_transactions_is_reported_with_what_holds_there(
    east: KafkaCluster, unique_topic: Callable[[], str]
) -> None:
    """And it is no reason not to run."""
    topic = east.create_topic(unique_topic())
    with KafkaCluster(name="plain", config={"transaction.state.log.replication.factor": "3"}) as target:
        addresses = ["--from", east.internal_bootstrap, "--to", target.internal_bootstrap]
        done = subprocess.run(
            [sys.executable, "-m", "mirrorflow_cli", "check", *addresses, "--topics", topic],
            capture_output=True,
            text=True,
            timeout=COMMAND_WAIT_S,
            check=False,
        )

    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert (
        "note  target gives at-least-once, because target has fewer brokers than "
        "transaction.state.log.replication.factor, so it has no transactions"
    ) in done.stdout
