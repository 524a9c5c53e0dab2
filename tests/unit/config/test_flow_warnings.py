"""Warnings about mm2.properties that are valid but probably not intended."""

import pytest

from mirrorflow_replicator.config.dedicated_mode import load_mm2
from mirrorflow_replicator.config.flow_warnings import EnabledFlow, flow_warnings

CLUSTERS = (
    "clusters = A, B, C\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nC.bootstrap.servers = c:1\n"
)
IDENTITY = "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
AROUND = "A->B.enabled = true\nB->C.enabled = true\nC->A.enabled = true\n"
BOTH_WAYS = "A->B.enabled = true\nB->A.enabled = true\n"


def warnings(lines: str) -> list[str]:
    """The warnings about flows of a file with *lines*, each once."""
    found = [warning for worker in load_mm2(CLUSTERS + lines) for warning in worker.warnings]
    return [one for one in dict.fromkeys(found) if "Without effect" not in one]


def test_an_ordinary_file_has_no_warning() -> None:
    assert [] == warnings(BOTH_WAYS)


def test_a_file_without_an_enabled_flow_is_warned_of() -> None:
    assert ["No flow is enabled, so only heartbeats are written"] == [
        one.partition(";")[0] for one in warnings("")
    ]


def test_an_empty_list_of_topics_is_warned_of() -> None:
    (found,) = warnings("A->B.enabled = true\nA->B.topics =\n")

    assert found.startswith("A->B.topics is empty")


def test_a_duplicate_key_is_warned_of() -> None:
    (found,) = warnings("A->B.enabled = true\nA->B.topics = x\nA->B.topics: y\n")

    assert "A->B.topics is there twice; the last line counts, as in Java." == found


@pytest.mark.parametrize(
    "topics",
    [
        "",
        "A->B.topics = orders\nB->A.topics = orders, payments\n",
        "A->B.topics = orders\n",
        "A->B.topics = or.*\nB->A.topics = .*s\n",
        f"A->B.topics = {'a' * 60}-1\nB->A.topics = (a|a)*\n",  # takes too long, so it is not known
    ],
)
def test_a_circle_of_unchanged_names_is_warned_of(topics: str) -> None:
    (found,) = warnings(BOTH_WAYS + IDENTITY + topics)

    assert found.startswith("A->B and B->A keep the names of topics")
    assert "so records of a topic that both select are copied in a circle without end" in found


@pytest.mark.parametrize(
    "topics",
    [
        "",
        "A->B.topics = orders\nB->C.topics = or.*\n",
        "A->B.topics = orders, payments\nB->C.topics = carts, orders\nC->A.topics = orders\n",
        "A->B.topics = or.*\nB->C.topics = .*s\nC->A.topics = [a-z]+\n",
    ],
)
def test_a_circle_of_three_is_warned_of(topics: str) -> None:
    (found,) = warnings(AROUND + IDENTITY + topics)

    assert found.startswith("A->B, B->C and C->A keep the names of topics")
    assert "so records of a topic that all of them select are copied in a circle without end" in found


def test_each_loop_is_reported_once_by_its_shortest_path() -> None:
    found = warnings(AROUND + "B->A.enabled = true\n" + IDENTITY)

    assert ["A->B and B->A", "A->B, B->C and C->A"] == [one.partition(" keep")[0] for one in found]


def test_many_clusters_in_many_circles_are_told_in_pairs() -> None:
    """Flows between all of twelve clusters make millions of circles."""
    names = [f"c{number}" for number in range(12)]
    flows = [
        EnabledFlow(source=one, target=other, topics=(".*",), keeps_names=True)
        for one in names
        for other in names
        if one != other
    ]

    assert 12 * 11 / 2 == len(list(flow_warnings(flows)))


@pytest.mark.parametrize(
    "lines",
    [
        BOTH_WAYS + IDENTITY + "A->B.topics = orders\nB->A.topics = payments\n",
        BOTH_WAYS + IDENTITY + "A->B.topics = orders\nB->A.topics = pay.*\n",
        "A->B.enabled = true\nB->C.enabled = true\n" + IDENTITY,
        AROUND + IDENTITY + "A->B.topics = orders\nB->C.topics = orders, pay.*\nC->A.topics = payments\n",
        AROUND + IDENTITY + "C->A.replication.policy.class = DefaultReplicationPolicy\n",
        BOTH_WAYS,
    ],
)
def test_flows_that_copy_nothing_in_a_circle_are_not_warned_of(lines: str) -> None:
    assert [] == warnings(lines)
