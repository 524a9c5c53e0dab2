"""ACLs of copies on real authorizers: which are synced, and which are never created or changed."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding, Operation, PatternType, Permission
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.identity_topic import AclMarks
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.source_properties import parse_source
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
    """A source with an authorizer. Clients without a password may do everything."""
    with KafkaCluster(name="walled", authorizer=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gated() -> Iterator[KafkaCluster]:
    """A target with an authorizer. Clients of the second listener are `mirror`, who has no permissions by default."""
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
    error_codes = call_cluster(cluster, lambda connected: admin.create_acls(connected, acls))
    assert not any(error_codes.values()), error_codes


def remove(cluster: KafkaCluster, *acls: AclBinding) -> None:
    error_codes = call_cluster(cluster, lambda connected: admin.delete_acls(connected, acls))
    assert not any(error_codes.values()), error_codes


def topic_acls(cluster: KafkaCluster, prefix: str) -> set[AclBinding]:
    """Returns the ACLs of topics that begin with *prefix*."""
    all_acls = call_cluster(cluster, lambda connected: admin.describe_acls(connected, resource_type=TOPIC))
    return {binding for binding in all_acls if binding.resource_name.startswith(prefix)}


def wait_for(cluster: KafkaCluster, prefix: str, expected: set[AclBinding]) -> None:
    """Waits until exactly the *expected* ACLs exist, and fails with the difference."""
    actual: set[AclBinding] = set()

    def is_expected() -> bool:
        nonlocal actual
        actual = topic_acls(cluster, prefix)
        return actual == expected

    try:
        wait_until("the ACLs are as expected", is_expected)
    finally:
        assert sorted(map(str, actual)) == sorted(map(str, expected))


def wait_for_marks(cluster: KafkaCluster, alias: str, expected: set[AclBinding]) -> None:
    """Waits until the flow has marked exactly *expected* as its own. Without marks, it would never remove them."""

    def marked() -> bool:
        return expected == call_cluster(
            cluster, lambda connected: AclMarks(connected, alias, naming="default .").read()
        )

    wait_until("the flow's own ACLs are marked", marked)


def wait_until_reported(replicator: Replicator, sentence: str) -> None:
    """Waits until REST reports *sentence*."""
    wait_until("REST reports the sentence", lambda: sentence in status(replicator))


def run(source: KafkaCluster, target: KafkaCluster, topic: str, folder: Path, **connector: str) -> Replicator:
    """Returns a flow of *topic*. Its alias is the topic's name in upper case, which no other flow has."""
    own = {"source.cluster.alias": topic.upper(), **EVERY_SECOND}
    own |= {key.replace("_", "."): value for key, value in connector.items()}
    return Replicator.standalone(source, target, topics=f"{topic}.*", folder=folder, connector=own)


def logged(replicator: Replicator, verb: str) -> list[str]:
    """Returns the ACLs that the log reports with *verb*, as often as it reports them."""
    lines = replicator.log_text().splitlines()
    return sorted(line.rpartition("gated: ")[2] for line in lines if f"ACL {verb}" in line)


def test_acls_are_synced_by_difference_and_foreign_ones_stay(
    walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """READ, DENY and prefixed ACLs are synced, ALL becomes READ, and WRITE is never synced.

    Each is written once, and ACLs of others are not changed.
    """
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
        # The next difference shows that further passes write nothing again.
        add(walled, acl(topic, "frank"))
        wait_for(gated, alias, foreign | copies | {acl(copy, "frank")})
        wait_until(
            "the last ACL is logged",
            lambda: str(acl(copy, "frank")) in replicator.log_text(),
        )

    assert logged(replicator, "created") == sorted(map(str, copies | {acl(copy, "frank")}))
    assert logged(replicator, "removed") == []


def test_acls_are_synced_to_the_topic_name_of_a_transformation(
    walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """They are removed when the source's ACLs are removed. Neither the name by the policy nor a prefix gets an ACL."""
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

    assert topic_acls(gated, topic.upper()) == set()


def test_acls_removed_on_the_source_are_removed_from_the_copy_if_the_flow_created_them(
    walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """A later process removes them. Equal ACLs that were on the target before stay."""
    topic = walled.create_topic(unique_topic())
    alias, copy = topic.upper(), f"{topic.upper()}.{topic}"
    add(walled, acl(topic, "alice"), acl(topic, "erin"), acl(topic, "dave", prefixed=True), acl("rest", "x"))
    add(gated, acl(copy, "erin"), acl(copy, "local"))
    created = {acl(copy, "alice"), acl(copy, "dave", prefixed=True)}
    existing = {acl(copy, "erin"), acl(copy, "local")}
    with run(walled, gated, topic, tmp_path / "first") as first:
        wait_for(gated, alias, created | existing)
        wait_for_marks(gated, alias, created)
        assert first.stop() == 0

    remove(walled, acl(topic, "alice"), acl(topic, "erin"), acl(topic, "dave", prefixed=True))

    with run(walled, gated, topic, tmp_path / "second") as second:
        wait_for(gated, alias, existing)
        wait_until("both removals are logged", lambda: len(logged(second, "removed")) == 2)
    assert logged(second, "removed") == sorted(map(str, created))


def test_report_only_mode_writes_no_acl_and_reports_each_difference(
    walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """REST and the log report creations and removals."""
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
            wait_until_reported(second, sentence)
        wait_until(
            "both differences are logged",
            lambda: all(sentence in second.log_text() for sentence in expected),
        )
    assert {acl(copy, "alice"), acl(copy, "erin")} == topic_acls(gated, alias)


def test_a_target_without_an_authorizer_is_logged_once(
    walled: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Passes continue every second. Records are copied, and the status has no warning."""
    topic = walled.create_topic(unique_topic())
    load(walled, topic, 100, keys=True)
    add(walled, acl(topic, "alice"))
    sentence = "cluster west has no authorizer"

    with run(walled, west, topic, tmp_path, refresh_topics_interval_seconds="1") as replicator:
        replicator.wait_until_caught_up()
        wait_until("the missing authorizer is logged", lambda: sentence in replicator.log_text())
        # When a later topic is discovered and copied, further ACL passes have run.
        later = walled.create_topic(f"{topic}-later")
        load(walled, later, 100, keys=True)
        replicator.wait_for_copy(west, f"{topic.upper()}.{later}", 100)
        log, rest_status = replicator.log_text(), status(replicator)

    assert log.count(sentence) == 1
    assert "ACL" not in rest_status


def test_a_missing_permission_for_acls_is_reported_until_it_is_granted(
    walled: KafkaCluster, gated: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """First Describe on the cluster is missing, then Alter.

    Meanwhile, records are copied. ACLs are synced once it is granted.
    """
    topic = walled.create_topic(unique_topic())
    alias, copy = topic.upper(), f"{topic.upper()}.{topic}"
    load(walled, topic, 100, keys=True)
    add(walled, acl(topic, "alice"))
    allow_target(gated, alias)
    before = topic_acls(gated, alias)
    connector = {"source.cluster.alias": alias, **EVERY_SECOND, **lines("target", gated)}

    with Replicator.standalone(
        walled, gated, topics=topic, folder=tmp_path, connector=connector, worker=client(gated)
    ) as replicator:
        replicator.wait_until_caught_up()
        for operation in ("Describe", "Alter"):
            sentence = f"does not authorize {operation} on the cluster itself (kafka-acls --cluster)"
            wait_until_reported(replicator, sentence)
            assert topic_acls(gated, alias) == before
            gated.allow(operation.upper(), "CLUSTER", "kafka-cluster")
        wait_for(gated, alias, before | {acl(copy, "alice")})
        wait_until(
            "no missing permission is reported",
            lambda: "does not authorize" not in status(replicator),
        )


def test_an_acl_is_marked_as_the_flows_before_it_is_created(
    walled: KafkaCluster,
    gated: KafkaCluster,
    unique_topic: Names,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise an ACL of a process killed right after the creation would never be removed."""
    topic = walled.create_topic(unique_topic())
    alias, copy = topic.upper(), f"{topic.upper()}.{topic}"
    add(walled, acl(topic, "alice"), acl("rest", "x"))
    with run(walled, gated, topic, tmp_path / "first", sync_topic_acls_enabled="false") as first:
        first.wait_until_caught_up()
        settings = parse_source(first.files[1], first.files[0])  # type: ignore[arg-type]

    class EndedError(Exception):
        """Simulates a SIGKILL: no code after the creation runs."""

    create = admin.create_acls

    async def create_and_end(cluster: Cluster, acls: Sequence[AclBinding]) -> None:
        await create(cluster, acls)
        raise EndedError

    async def run_pass(target: Cluster) -> None:
        source = await Cluster.connect(settings.source_admin, resolve=dict)
        try:
            sync = AclSync(source, target, settings=settings, selection=make_selection(settings))
            await sync.sync([topic])
        finally:
            await source.close()

    with monkeypatch.context() as patch:
        patch.setattr(admin, "create_acls", create_and_end)
        with pytest.raises(EndedError):
            call_cluster(gated, run_pass)
    assert {acl(copy, "alice")} == topic_acls(gated, alias)

    remove(walled, acl(topic, "alice"))
    call_cluster(gated, run_pass)
    assert set() == topic_acls(gated, alias)
