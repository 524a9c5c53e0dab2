"""What coordinators' answers mean, in the versions that brokers of different age give them."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from kafka.protocol.admin import ListGroupsResponse
from kafka.protocol.consumer import OffsetCommitResponse, OffsetFetchResponse

from mirrorflow_core.errors import BrokerError, NotAuthorizedError
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import groups
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.metadata import EMPTY

FOO = TopicPartition("foo", 3)


class Answering:
    """A cluster of which each request gets the next of *answers*; `asked` remembers the requests."""

    alias = "west"
    metadata = EMPTY
    raise_for = Cluster.raise_for

    def __init__(self, *answers: Any, nodes: Iterable[int] = ()) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[Any, dict[str, Any]]] = []
        self.metadata = type("Nodes", (), {"brokers": dict.fromkeys(nodes)})()

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Nothing is new."""

    async def call(self, request: Any, **where: Any) -> Any:
        self.asked.append((request, where))
        return self._answers.pop(0)


def read(answer: Any, version: int) -> Any:
    """As it comes from the wire."""
    return type(answer).decode(answer.encode(version=version), version=version)


def fetched(version: int, *, error: int = 0, offset: int = 7, metadata: str | None = "m") -> Any:
    """An OffsetFetch answer about FOO."""
    if version >= 8:
        group = OffsetFetchResponse.OffsetFetchResponseGroup
        topic = group.OffsetFetchResponseTopics
        partition = topic.OffsetFetchResponsePartitions
    else:
        topic = OffsetFetchResponse.OffsetFetchResponseTopic
        partition = topic.OffsetFetchResponsePartition
    part = partition(partition_index=3, committed_offset=offset, metadata=metadata, error_code=0)
    topics = [topic(name="foo", partitions=[part])]
    if version >= 8:
        answer = OffsetFetchResponse(groups=[group(group_id="g", topics=topics, error_code=error)])
    else:
        answer = OffsetFetchResponse(topics=topics, error_code=error)
    return read(answer, version)


@pytest.mark.parametrize("version", [2, 5, 7, 8, 9])
def test_offsets_are_read_from_every_version(version: int):
    """Version 8 brought lists of groups (KIP-709)."""
    found = asyncio.run(groups.fetch_offsets(Answering(fetched(version)), "g"))  # type: ignore[arg-type]
    assert {FOO: Committed(offset=7, metadata="m")} == found


@pytest.mark.parametrize("version", [7, 9])
def test_what_was_never_committed_is_absent_and_null_metadata_are_none(version: int):
    """-1 is no offset."""
    never = asyncio.run(groups.fetch_offsets(Answering(fetched(version, offset=-1)), "g"))  # type: ignore[arg-type]
    bare = asyncio.run(groups.fetch_offsets(Answering(fetched(version, metadata=None)), "g"))  # type: ignore[arg-type]
    assert ({}, {FOO: Committed(offset=7)}) == (never, bare)


@pytest.mark.parametrize("version", [7, 9])
def test_a_group_that_may_not_be_described_is_an_error_and_one_that_is_not_there_is_none(version: int):
    """30 and 69."""
    with pytest.raises(NotAuthorizedError, match="group g"):
        asyncio.run(groups.fetch_offsets(Answering(fetched(version, error=30)), "g"))  # type: ignore[arg-type]
    assert {} == asyncio.run(groups.fetch_offsets(Answering(fetched(version, error=69)), "g"))  # type: ignore[arg-type]


def test_groups_of_all_brokers_are_listed_whatever_they_tell():
    """Version 5 has state and type, version 3 neither."""
    listed = ListGroupsResponse.ListedGroup
    new = listed(group_id="new", protocol_type="consumer", group_state="Stable", group_type="Classic")
    old = listed(group_id="old", protocol_type="consumer", group_state="", group_type="")
    cluster = Answering(
        read(ListGroupsResponse(error_code=0, groups=[new]), 5),
        read(ListGroupsResponse(error_code=0, groups=[old]), 3),
        nodes=(1, 2),
    )

    found = asyncio.run(groups.list_groups(cluster))  # type: ignore[arg-type]

    assert {"new": ("Stable", "Classic"), "old": ("", "")} == {
        name: (group.state, group.type) for name, group in found.items()
    }
    assert [1, 2] == [where["node_id"] for _, where in cluster.asked]


def test_groups_of_brokers_that_answer_are_listed_without_those_of_others():
    """A coordinator that is loading has an error code of its own (14)."""
    listed = ListGroupsResponse.ListedGroup(
        group_id="g", protocol_type="consumer", group_state="Empty", group_type="Classic"
    )
    answers = [
        read(ListGroupsResponse(error_code=14, groups=[]), 5),
        read(ListGroupsResponse(error_code=0, groups=[listed]), 5),
    ]

    listing = asyncio.run(groups.list_reachable_groups(Answering(*answers, nodes=(1, 2))))  # type: ignore[arg-type]

    assert list(listing.groups) == ["g"]
    assert isinstance(listing.problem, BrokerError)
    with pytest.raises(BrokerError):
        asyncio.run(groups.list_groups(Answering(*answers, nodes=(1, 2))))  # type: ignore[arg-type]
    with pytest.raises(BrokerError):
        asyncio.run(groups.list_reachable_groups(Answering(answers[0], nodes=(1,))))  # type: ignore[arg-type]


def committed(*codes: int) -> Any:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    parts = [
        topic.OffsetCommitResponsePartition(partition_index=index, error_code=code)
        for index, code in enumerate(codes)
    ]
    return read(OffsetCommitResponse(topics=[topic(name="foo", partitions=parts)]), 9)


def commit(answer: Any) -> dict[TopicPartition, int]:
    offsets = {TopicPartition("foo", index): Committed(offset=index) for index in range(2)}
    return asyncio.run(groups.commit_offsets(Answering(answer), "g", offsets))  # type: ignore[arg-type]


def test_each_partition_has_its_own_verdict():
    """One unknown topic leaves the others alone; members answer for all."""
    assert {TopicPartition("foo", 0): 0, TopicPartition("foo", 1): 3} == commit(committed(0, 3))
    assert groups.MEMBERS_PRESENT & set(commit(committed(25, 25)).values())


@pytest.mark.parametrize(("code", "error"), [(30, NotAuthorizedError), (16, BrokerError)])
def test_what_is_true_of_the_whole_group_is_raised(code: int, error: type[Exception]):
    """Not authorized, or the coordinator did not come to rest within the time."""
    with pytest.raises(error):
        commit(committed(code, code))


class Coordinator(Answering):
    """Answers each OffsetCommit with *code* for every partition."""

    def __init__(self, *, code: int = 0) -> None:
        super().__init__()
        self._code = code

    async def call(self, request: Any, **where: Any) -> Any:
        self.asked.append((request, where))
        topic = OffsetCommitResponse.OffsetCommitResponseTopic
        part = topic.OffsetCommitResponsePartition
        answered = [
            topic(
                name=one.name,
                partitions=[
                    part(partition_index=at.partition_index, error_code=self._code) for at in one.partitions
                ],
            )
            for one in request.topics
        ]
        return read(OffsetCommitResponse(topics=answered), 9)


MANY = {TopicPartition("foo", number): Committed(offset=number, metadata="m" * 4000) for number in range(300)}


def test_many_offsets_are_committed_in_parts_that_fit_into_a_batch():
    """A coordinator appends a request as one batch."""
    coordinator = Coordinator()

    codes = asyncio.run(groups.commit_offsets(coordinator, "g", MANY))  # type: ignore[arg-type]

    sizes = [
        sum(len(part.committed_metadata) for topic in request.topics for part in topic.partitions)
        for request, _ in coordinator.asked
    ]
    assert codes == dict.fromkeys(MANY, 0)
    assert sum(sizes) == 300 * 4000
    assert 1 < len(sizes)
    assert max(sizes) <= groups.COMMIT_BYTES_MAX


def test_no_more_is_committed_once_the_group_has_members():
    coordinator = Coordinator(code=25)

    codes = asyncio.run(groups.commit_offsets(coordinator, "g", MANY))  # type: ignore[arg-type]

    assert len(coordinator.asked) == 1
    assert set(codes.values()) == {25}
    assert codes.keys() < MANY.keys()


def test_one_offset_is_sent_however_large_its_metadata_are():
    huge = {FOO: Committed(offset=1, metadata="m" * (groups.COMMIT_BYTES_MAX + 1))}

    assert asyncio.run(groups.commit_offsets(Coordinator(), "g", huge)) == {FOO: 0}  # type: ignore[arg-type]
