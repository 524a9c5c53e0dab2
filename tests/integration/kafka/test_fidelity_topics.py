"""Which topics are copied, from which offset, and under which name.

The tests cover growth, discovery, policies and special names.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied, contents

Names = Callable[[], str]


def flow(
    east: KafkaCluster, west: KafkaCluster, topics: str, alias: str, folder: Path, **connector: str
) -> Replicator:
    """Returns a flow with *alias* that discovers topics every second. *connector* has underscores instead of dots."""
    lines = {"source.cluster.alias": alias, "refresh.topics.interval.seconds": "1"}
    lines |= {key.replace("_", "."): value for key, value in connector.items()}
    return Replicator.standalone(east, west, topics=topics, folder=folder, connector=lines)


def test_new_partitions_and_topics_are_copied_from_their_beginning(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """A flow that begins at the end still reads later partitions and topics from their beginning."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 500, keys=True)

    with flow(east, west, f"{topic}.*", "growth", tmp_path, mirrorflow_start_from="latest") as replicator:
        replicator.wait_for_phase("copying", topic)
        east.create_topic(f"{topic}-later")
        load(east, f"{topic}-later", 300, keys=True)
        east.add_partitions(topic, 3)
        load(east, topic, 900, keys=True, first=500)

        def all_copied() -> bool:
            return bool(sum(record["records"] for record in replicator.partitions()) == 1200)

        wait_until("growth and the new topic are copied", all_copied)

    assert_copied(east, f"{topic}-later", west, f"growth.{topic}-later", count=300)
    copied = contents(records(west, f"growth.{topic}"))
    original = [
        record for record in contents(records(east, topic)) if record[2] is None or int(record[2]) >= 500
    ]
    assert len(copied) == 900
    assert original == copied


@pytest.mark.parametrize(
    ("policy", "alias", "remote"),
    [
        ({"replication_policy_separator": "__"}, "parted", "parted__{}"),
        (
            {
                "replication_policy_class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
                "replication_policy_separator": "-",
            },
            "same",
            "{}",
        ),
    ],
    ids=["separator", "identity"],
)
def test_the_replication_policy_names_the_copy(
    east: KafkaCluster,
    west: KafkaCluster,
    unique_topic: Names,
    tmp_path: Path,
    policy: dict[str, str],
    alias: str,
    remote: str,
) -> None:
    """The policies are the default one with a separator, and Identity, which keeps the name.

    Further records are copied too.
    """
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 200, keys=True)

    with flow(east, west, topic, alias, tmp_path, **policy) as replicator:
        replicator.wait_until_caught_up(partitions=2)
        load(east, topic, 200, keys=True, first=200)
        replicator.wait_for_copy(west, remote.format(topic), 400)

    assert_copied(east, topic, west, remote.format(topic), count=400)


def test_topics_with_special_characters_and_long_names_are_copied(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The names have dots, underscores and dashes at either end, or 249 characters with the alias.

    (Names with a leading dot are internal.)
    """
    stem = unique_topic()
    names = [f"-{stem}.", f"_.{stem}__-", f"x..{stem}._", f"{stem}-{'n' * 249}"[: 249 - len("odd.")]]
    for name in names:
        load(east, east.create_topic(name), 50, keys=True)

    with flow(east, west, f".*{stem}.*", "odd", tmp_path) as replicator:
        replicator.wait_until_caught_up(partitions=len(names))

    for name in names:
        assert_copied(east, name, west, f"odd.{name}", count=50)


@pytest.mark.parametrize(
    ("start", "since"), [("latest", 4000), ("timestamp:{}", 1500), ("by_duration:PT1H", 3000)]
)
def test_a_flow_starts_at_the_configured_offset(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, start: str, since: int
) -> None:
    """The start is the end, a timestamp, or a time before now.

    Once started, the flow continues at its position under every setting.
    """
    topic = east.create_topic(unique_topic())
    now_ms = time.time_ns() // 1_000_000
    # The first 3000 records are older than two hours, and the others are younger than eleven minutes. No delay moves a
    # record across one hour.
    began_ms = now_ms - 3 * 3_600_000
    load(east, topic, 3000, keys=True, codec="gzip", timestamp_ms=began_ms, timestamp_step_ms=1000)
    load(east, topic, 1000, keys=True, codec="gzip", first=3000, timestamp_ms=now_ms - 660_000)
    settings = {"mirrorflow_start_from": start.format(began_ms + 1_500_000)}

    with flow(east, west, topic, topic.upper(), tmp_path, **settings) as replicator:
        replicator.wait_until_caught_up()
        load(east, topic, 10, keys=True, first=4000)
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
        load(east, topic, 10, keys=True, first=4010)
        replicator.start()
        replicator.wait_until_caught_up()

    copied = contents(records(west, f"{topic.upper()}.{topic}"))
    assert contents(records(east, topic))[-len(copied) :] == copied
    assert [4019] == [int(copied[-1][2] or b"")]
    assert len(copied) == 4020 - since
