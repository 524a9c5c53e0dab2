"""ACLs of copies on real authorizers: what follows, what never does, and whose are never touched."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mirrorflow_core.topic_acls import TOPIC, AclBinding, Operation, PatternType, Permission
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.identity_topic import AclMarks
from mirrorflow_replicator.config.connector_properties import parse_source
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.connectors.acl_sync import AclSync
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import call_cluster
from tests.integration.kafka.test_failures_access import allow_target, client, lines, status

EVERY_SECOND = {"sync.topic.acls.interval.seconds": "1"}
READ, WRITE, ALL, DESCRIBE = Operation.READ, Operation.WRITE, Operation.ALL, Operation.DESCRIBE
ALLOW, DENY = Permission.ALLOW, Permission.DENY

Names = Callable[[], str]


@pytest.fixture(scope="module")
def walled() -> Iterator[KafkaCluster]:
    """The source: has an authorizer; who comes in without a password may do everything."""
    with KafkaCluster(name="walled", authorizer=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gated() -> Iterator[KafkaCluster]:
    """The target of the same kind; who comes in by the second listener is `mirror`, who may do nothing by himself."""
    with KafkaCluster(name="gated", listeners=("PLAINTEXT", "SASL_PLAINTEXT"), authorizer=True) as cluster:
        yield cluster


def acl(
    name: str, user: str, operation: int = READ, permission: int = ALLOW, *, prefixed: bool = False
) -> AclBinding:
    return AclBinding(
        resource_type=TOPIC,
        resource_name=name,
        pattern_type=int(PatternType.PREFIXED if prefixed else PatternType.LITERAL),
        principal=f"User:{user}",
        host="*",
        operation=int(operation),
        permission_type=int(permission),
    )


def add(cluster: KafkaCluster, *acls: AclBinding) -> None:
    answers = call_cluster(cluster, lambda connected: admin.create_acls(connected, acls))
    assert not any(answers.values()), answers


def remove(cluster: KafkaCluster, *acls: AclBinding) -> None:
    answers = call_cluster(cluster, lambda connected: admin.delete_acls(connected, acls))
    assert not any(answers.values()), answers


def found(cluster: KafkaCluster, prefix: str) -> set[AclBinding]:
    """The ACLs of topics that begin with *prefix*."""
    every = call_cluster(cluster, lambda connected: admin.describe_acls(connected, resource_type=TOPIC))
    return {one for one in every if one.resource_name.startswith(prefix)}


def wait_for(cluster: KafkaCluster, prefix: str, expected: set[AclBinding]) -> None:
    """Until exactly *expected* are there; the difference, if they are not."""
    seen: set[AclBinding] = set()

    def same() -> bool:
        nonlocal seen
        seen = found(cluster, prefix)
        return seen == expected

    try:
        wait_until("the ACLs are as expected", same)
    finally:
        assert sorted(map(str, seen)) == sorted(map(str, expected))


def wait_for_marks(cluster: KafkaCluster, alias: str, expected: set[AclBinding]) -> None:
    """Until the flow has noted that exactly *expected* are its own: ended before, it would leave them for ever."""

    def marked() -> bool:
        return expected == call_cluster(
            cluster, lambda connected: AclMarks(connected, alias, naming="default .").read()
        )

    wait_until("the flow's own ACLs are marked", marked)


def wait_until_said(replicator: Replicator, sentence: str) -> None:
    """Until REST says it."""
    wait_until("REST says it", lambda: sentence in status(replicator))


def run(source: KafkaCluster, target: KafkaCluster, topic: str, folder: Path, **connector: str) -> Replicator:
    """A flow of *topic* under its upper-case name, which no other flow has."""
    own = {"source.cluster.alias": topic.upper(), **EVERY_SECOND}
    own |= {key.replace("_", "."): value for key, value in connector.items()}
    return Replicator.standalone(source, target, topics=f"{topic}.*", folder=folder, connector=own)


def logged(replicator: Replicator, verb: str) -> list[str]:
    """The ACLs that it says it has *verb*, as often as it says so."""
    lines = replicator.log_text().splitlines()
    return sorted(line.rpartition("gated: ")[2] for line in lines if f"ACL {verb}" in line)


def test_acls_follow_by_difference_and_foreign_ones_stay(
    walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """READ, DENY and prefixes follow, ALL as READ, WRITE never; each is written once, and others' are left alone."""
    topic = walled.create_topic(unique_topic())
    alias, copy = topic.upper(), f"{topic.upper()}.{topic}"
    add(walled, acl(topic, "alice"), acl(topic, "bob", WRITE), acl(topic, "carol", ALL))
    add(walled, acl(topic, "mallory", ALL, DENY), acl(topic, "dave", DESCRIBE, prefixed=True))
    add(walled, acl("elsewhere", "alice"))
    foreign = {acl(copy, "local", WRITE), acl(f"{alias}.other", "local"), acl(copy, "dave", ALL)}
    add(gated, *foreign)
    copies = {
        acl(copy, "alice"),
        acl(copy, "carol"),
        acl(copy, "mallory", ALL, DENY),
        acl(copy, "dave", DESCRIBE, prefixed=True),
    }

    with run(walled, gated, topic, tmp_path) as replicator:
        wait_for(gated, alias, foreign | copies)
        # Further passes, as the next difference shows, write nothing again.
        add(walled, acl(topic, "frank"))
        wait_for(gated, alias, foreign | copies | {acl(copy, "frank")})
        wait_until(
            "the last one is logged",
            lambda: str(acl(copy, "frank")) in replicator.log_text(),
        )

    assert logged(replicator, "created") == sorted(map(str, copies | {acl(copy, "frank")}))
    assert logged(replicator, "removed") == []


def test_acls_follow_to_the_name_that_a_transformation_gives(
    walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """And go with it, when the source takes them back; the policy's name gets none, nor does a prefix, which has no such name."""
    topic = walled.create_topic(unique_topic())
    renamed = f"renamed-{topic}"
    add(walled, acl(topic, "alice"), acl(topic, "mallory", ALL, DENY), acl(topic, "dave", prefixed=True))
    copies = {acl(renamed, "alice"), acl(renamed, "mallory", ALL, DENY)}
    router = {
        "transforms": "r",
        "transforms_r_type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms_r_regex": rf"{topic.upper()}\.({topic}.*)",
        "transforms_r_replacement": "renamed-$1",
    }

    with run(walled, gated, topic, tmp_path, **router):
        wait_for(gated, renamed, copies)
        remove(walled, acl(topic, "alice"))
        add(walled, acl(topic, "frank"))
        wait_for(gated, renamed, {acl(renamed, "mallory", ALL, DENY), acl(renamed, "frank")})

    assert found(gated, topic.upper()) == set()


def test_what_the_source_takes_back_is_taken_back_from_the_copy_if_the_flow_gave_it(
    walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """By a process that was not the one to give it; what was on the target before reads the same and stays."""
    topic = walled.create_topic(unique_topic())
    alias, copy = topic.upper(), f"{topic.upper()}.{topic}"
    add(walled, acl(topic, "alice"), acl(topic, "erin"), acl(topic, "dave", prefixed=True), acl("rest", "x"))
    add(gated, acl(copy, "erin"), acl(copy, "local"))
    given = {acl(copy, "alice"), acl(copy, "dave", prefixed=True)}
    there_before = {acl(copy, "erin"), acl(copy, "local")}
    with run(walled, gated, topic, tmp_path / "first") as first:
        wait_for(gated, alias, given | there_before)
        wait_for_marks(gated, alias, given)
        assert first.stop() == 0

    remove(walled, acl(topic, "alice"), acl(topic, "erin"), acl(topic, "dave", prefixed=True))

    with run(walled, gated, topic, tmp_path / "second") as second:
        wait_for(gated, alias, there_before)
        wait_until("both are logged", lambda: len(logged(second, "removed")) == 2)
    assert logged(second, "removed") == sorted(map(str, given))


def test_reporting_writes_nothing_and_names_what_it_would(
    walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Creation and removal alike; the sentences are in REST and in the log."""
    topic = walled.create_topic(unique_topic())
    alias, copy = topic.upper(), f"{topic.upper()}.{topic}"
    add(walled, acl(topic, "alice"), acl(topic, "erin"))
    with run(walled, gated, topic, tmp_path / "first"):
        wait_for(gated, alias, {acl(copy, "alice"), acl(copy, "erin")})
        wait_for_marks(gated, alias, {acl(copy, "alice"), acl(copy, "erin")})
    remove(walled, acl(topic, "erin"))
    add(walled, acl(topic, "mallory", ALL, DENY))

    with run(
        walled, gated, topic, tmp_path / "second", mirrorflow_sync_topic_acls_report_only="true"
    ) as second:
        expected = (
            f"Deny All on topic {copy} for User:mallory: would be created",
            f"Allow Read on topic {copy} for User:erin: would be removed",
        )
        for sentence in expected:
            wait_until_said(second, sentence)
        wait_until(
            "both are logged",
            lambda: all(sentence in second.log_text() for sentence in expected),
        )
    assert {acl(copy, "alice"), acl(copy, "erin")} == found(gated, alias)


def test_a_target_without_an_authorizer_is_one_line_in_the_log(
    walled: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Passes go on every second; the copy is not held up and its status has nothing to say."""
    topic = walled.create_topic(unique_topic())
    load(walled, topic, 100, keys=True)
    add(walled, acl(topic, "alice"))
    sentence = "cluster west has no authorizer"

    with run(walled, west, topic, tmp_path, refresh_topics_interval_seconds="1") as replicator:
        replicator.wait_until_caught_up()
        wait_until("it is logged", lambda: sentence in replicator.log_text())
        # A topic that is found and copied later has been through passes of the ACLs in between.
        later = walled.create_topic(f"{topic}-later")
        load(walled, later, 100, keys=True)
        replicator.wait_for_copy(west, f"{topic.upper()}.{later}", 100)
        log, said = replicator.log_text(), status(replicator)

    assert log.count(sentence) == 1
    assert "ACL" not in said


def test_what_the_target_does_not_grant_is_named_until_it_does(
    walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """First Describe on the cluster, then Alter; the copy continues all the while, and the ACLs follow once granted."""
    topic = walled.create_topic(unique_topic())
    alias, copy = topic.upper(), f"{topic.upper()}.{topic}"
    load(walled, topic, 100, keys=True)
    add(walled, acl(topic, "alice"))
    allow_target(gated, alias)
    before = found(gated, alias)
    connector = {"source.cluster.alias": alias, **EVERY_SECOND, **lines("target", gated)}

    with Replicator.standalone(
        walled, gated, topics=topic, folder=tmp_path, connector=connector, worker=client(gated)
    ) as replicator:
        replicator.wait_until_caught_up()
        for operation in ("Describe", "Alter"):
            sentence = f"does not authorize {operation} on the cluster itself (kafka-acls --cluster)"
            wait_until_said(replicator, sentence)
            assert found(gated, alias) == before
            gated.allow(operation.upper(), "CLUSTER", "kafka-cluster")
        wait_for(gated, alias, before | {acl(copy, "alice")})
        wait_until(
            "nothing is missing",
            lambda: "does not authorize" not in status(replicator),
        )


def test_an_acl_is_known_to_be_ours_although_its_creator_ended_right_behind_it(
    walled: KafkaCluster,
    gated: KafkaCluster,
    unique_topic: Names,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is marked before it is created: otherwise it would never be taken back."""
    topic = walled.create_topic(unique_topic())
    alias, copy = topic.upper(), f"{topic.upper()}.{topic}"
    add(walled, acl(topic, "alice"), acl("rest", "x"))
    with run(walled, gated, topic, tmp_path / "first", sync_topic_acls_enabled="false") as first:
        first.wait_until_caught_up()
        settings = parse_source(first.files[1], first.files[0])  # type: ignore[arg-type]

    class EndedError(Exception):
        """Stands for a SIGKILL: nothing behind the creation is done."""

    create = admin.create_acls

    async def create_and_end(cluster: Cluster, acls: Sequence[AclBinding]) -> None:
        await create(cluster, acls)
        raise EndedError

    async def one_pass(target: Cluster) -> None:
        source = await Cluster.connect(settings.source_admin, resolve=dict)
        try:
            sync = AclSync(source, target, settings=settings, selection=make_selection(settings))
            await sync.sync([topic])
        finally:
            await source.close()

    with monkeypatch.context() as patch:
        patch.setattr(admin, "create_acls", create_and_end)
        with pytest.raises(EndedError):
            call_cluster(gated, one_pass)
    assert {acl(copy, "alice")} == found(gated, alias)

    remove(walled, acl(topic, "alice"))
    call_cluster(gated, one_pass)
    assert set() == found(gated, alias)
