"""Responses of group coordinators are interpreted in all versions that brokers may send."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from kafka.protocol.admin import ListGroupsResponse
from kafka.protocol.consumer import OffsetCommitResponse, OffsetFetchResponse

from mirrorflow_core.errors import BrokerError, NotAuthorizedError, UnreachableError, UnsupportedBrokerError
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import groups
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.metadata import EMPTY

FOO = TopicPartition("foo", 3)


class StubCluster:
    """A cluster that returns the next of *responses* for each request; `requests` has the requests."""

    alias = "west"
    metadata = EMPTY
    raise_for = Cluster.raise_for

    def __init__(self, *responses: Any, nodes: Iterable[int] = ()) -> None:
        self._responses = list(responses)
        self.requests: list[tuple[Any, dict[str, Any]]] = []
        self.metadata = type("Nodes", (), {"brokers": dict.fromkeys(nodes)})()

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Does nothing, because the metadata is up to date."""

    async def coordinator(self, _: tuple[int, str], **__: bool) -> int:
        """Returns node 1, which coordinates every group."""
        return 1

    async def call(self, request: Any, **options: Any) -> Any:
        self.requests.append((request, options))
        response = self._responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response


def read(response: Any, version: int) -> Any:
    """The response as decoded from the wire."""
    return type(response).decode(response.encode(version=version), version=version)


def offset_fetch_response(
    version: int, *, error: int = 0, offset: int = 7, metadata: str | None = "m"
) -> Any:
    """An OffsetFetch response for FOO."""
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
        response = OffsetFetchResponse(groups=[group(group_id="g", topics=topics, error_code=error)])
    else:
        response = OffsetFetchResponse(topics=topics, error_code=error)
    return read(response, version)


@pytest.mark.parametrize("version", [2, 5, 7, 8, 9])
def test_offsets_are_decoded_in_every_version(version: int):
    """Version 8 introduced lists of groups (KIP-709)."""
    offsets = asyncio.run(groups.fetch_offsets(StubCluster(offset_fetch_response(version)), "g"))  # type: ignore[arg-type]
    assert {FOO: Committed(offset=7, metadata="m")} == offsets


@pytest.mark.parametrize("version", [7, 9])
def test_uncommitted_offsets_are_left_out_and_null_metadata_is_empty(version: int):
    """The broker returns -1 for an uncommitted offset."""
    uncommitted, without_metadata = (
        asyncio.run(groups.fetch_offsets(StubCluster(response), "g"))  # type: ignore[arg-type]
        for response in (
            offset_fetch_response(version, offset=-1),
            offset_fetch_response(version, metadata=None),
        )
    )
    assert ({}, {FOO: Committed(offset=7)}) == (uncommitted, without_metadata)


@pytest.mark.parametrize("version", [7, 9])
def test_an_unauthorized_group_is_an_error_and_a_missing_one_has_no_offsets(version: int):
    """The error codes are 30 and 69."""
    with pytest.raises(NotAuthorizedError, match="group g"):
        asyncio.run(groups.fetch_offsets(StubCluster(offset_fetch_response(version, error=30)), "g"))  # type: ignore[arg-type]
    assert {} == asyncio.run(groups.fetch_offsets(StubCluster(offset_fetch_response(version, error=69)), "g"))  # type: ignore[arg-type]


def many_groups_response(**errors: int) -> Any:
    """An OffsetFetch response of version 9: each group at offset 7 of FOO, or with its error code."""
    group = OffsetFetchResponse.OffsetFetchResponseGroup
    topic = group.OffsetFetchResponseTopics
    part = topic.OffsetFetchResponsePartitions(
        partition_index=3, committed_offset=7, metadata="m", error_code=0
    )
    rows = [
        group(group_id=name, topics=[] if code else [topic(name="foo", partitions=[part])], error_code=code)
        for name, code in errors.items()
    ]
    return read(OffsetFetchResponse(groups=rows), 9)


def fetched(cluster: StubCluster, *names: str) -> Any:
    return asyncio.run(groups.fetch_offsets_of(cluster, names))  # type: ignore[arg-type]


AT_7 = {FOO: Committed(offset=7, metadata="m")}


def test_many_groups_of_a_coordinator_are_read_with_one_request():
    cluster = StubCluster(many_groups_response(g=0, h=0))

    assert {"g": AT_7, "h": AT_7} == fetched(cluster, "g", "h")
    assert len(cluster.requests) == 1


def test_a_group_that_is_refused_in_a_batch_is_read_alone():
    """Error code 16 means that the coordinator has moved. The request for a single group handles that."""
    cluster = StubCluster(
        many_groups_response(g=0, h=16, i=30), many_groups_response(h=0), many_groups_response(i=30)
    )

    offsets = fetched(cluster, "g", "h", "i")

    assert (AT_7, AT_7) == (offsets["g"], offsets["h"])
    assert isinstance(offsets["i"], NotAuthorizedError)


def test_brokers_that_accept_one_group_per_request_get_several_requests():
    old = UnsupportedBrokerError(cluster="west", feature="OffsetFetch 8", needs="Kafka 3.0")
    cluster = StubCluster(old, offset_fetch_response(7), offset_fetch_response(7))

    assert {"g": AT_7, "h": AT_7} == fetched(cluster, "g", "h")


def test_an_unresponsive_coordinator_fails_all_its_groups_after_one_timeout():
    silent = UnreachableError(cluster="west", addresses="west:9092", problem="timed out")
    cluster = StubCluster(silent)

    assert {"g": silent, "h": silent} == fetched(cluster, "g", "h")


def test_groups_of_all_brokers_are_listed_with_any_response_version():
    """Version 5 has state and type; version 3 has neither."""
    listed = ListGroupsResponse.ListedGroup
    new = listed(group_id="new", protocol_type="consumer", group_state="Stable", group_type="Classic")
    old = listed(group_id="old", protocol_type="consumer", group_state="", group_type="")
    cluster = StubCluster(
        read(ListGroupsResponse(error_code=0, groups=[new]), 5),
        read(ListGroupsResponse(error_code=0, groups=[old]), 3),
        nodes=(1, 2),
    )

    listing = asyncio.run(groups.list_groups(cluster))  # type: ignore[arg-type]

    assert {"new": ("Stable", "Classic"), "old": ("", "")} == {
        name: (group.state, group.type) for name, group in listing.items()
    }
    assert [1, 2] == [options["node_id"] for _, options in cluster.requests]


def test_groups_of_reachable_brokers_are_listed_without_those_of_failing_brokers():
    """A coordinator that is still loading returns error code 14."""
    listed = ListGroupsResponse.ListedGroup(
        group_id="g", protocol_type="consumer", group_state="Empty", group_type="Classic"
    )
    responses = [
        read(ListGroupsResponse(error_code=14, groups=[]), 5),
        read(ListGroupsResponse(error_code=0, groups=[listed]), 5),
    ]

    listing = asyncio.run(groups.list_reachable_groups(StubCluster(*responses, nodes=(1, 2))))  # type: ignore[arg-type]

    assert list(listing.groups) == ["g"]
    assert isinstance(listing.problem, BrokerError)
    with pytest.raises(BrokerError):
        asyncio.run(groups.list_groups(StubCluster(*responses, nodes=(1, 2))))  # type: ignore[arg-type]
    with pytest.raises(BrokerError):
        asyncio.run(groups.list_reachable_groups(StubCluster(responses[0], nodes=(1,))))  # type: ignore[arg-type]


def offset_commit_response(*codes: int) -> Any:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    parts = [
        topic.OffsetCommitResponsePartition(partition_index=index, error_code=code)
        for index, code in enumerate(codes)
    ]
    return read(OffsetCommitResponse(topics=[topic(name="foo", partitions=parts)]), 9)


def commit(response: Any) -> dict[TopicPartition, int]:
    offsets = {TopicPartition("foo", index): Committed(offset=index) for index in range(2)}
    return asyncio.run(groups.commit_offsets(StubCluster(response), "g", offsets))  # type: ignore[arg-type]


def test_each_partition_has_its_own_error_code():
    """An unknown topic does not affect others. A group with members fails for all partitions."""
    assert {TopicPartition("foo", 0): 0, TopicPartition("foo", 1): 3} == commit(offset_commit_response(0, 3))
    assert groups.MEMBERS_PRESENT & set(commit(offset_commit_response(25, 25)).values())


@pytest.mark.parametrize(("code", "error"), [(30, NotAuthorizedError), (16, BrokerError)])
def test_an_error_of_the_whole_group_is_raised(code: int, error: type[Exception]):
    """The group is not authorized, or the coordinator did not become available in time."""
    with pytest.raises(error):
        commit(offset_commit_response(code, code))


class Coordinator(StubCluster):
    """A coordinator that responds to each OffsetCommit with *code* for every partition."""

    def __init__(self, *, code: int = 0) -> None:
        super().__init__()
        self._code = code

    async def call(self, request: Any, **options: Any) -> Any:
        self.requests.append((request, options))
        topic = OffsetCommitResponse.OffsetCommitResponseTopic
        part = topic.OffsetCommitResponsePartition
        topics = [
            topic(
                name=requested.name,
                partitions=[
                    part(partition_index=partition.partition_index, error_code=self._code)
                    for partition in requested.partitions
                ],
            )
            for requested in request.topics
        ]
        return read(OffsetCommitResponse(topics=topics), 9)


MANY = {TopicPartition("foo", number): Committed(offset=number, metadata="m" * 4000) for number in range(300)}


def test_many_offsets_are_committed_in_requests_that_fit_into_a_batch():
    """A coordinator appends each request as one batch."""
    coordinator = Coordinator()

    codes = asyncio.run(groups.commit_offsets(coordinator, "g", MANY))  # type: ignore[arg-type]

    sizes = [
        sum(len(part.committed_metadata) for topic in request.topics for part in topic.partitions)
        for request, _ in coordinator.requests
    ]
    assert codes == dict.fromkeys(MANY, 0)
    assert sum(sizes) == 300 * 4000
    assert 1 < len(sizes)
    assert max(sizes) <= groups.COMMIT_BYTES_MAX


def test_commits_stop_when_the_group_has_members():
    coordinator = Coordinator(code=25)

    codes = asyncio.run(groups.commit_offsets(coordinator, "g", MANY))  # type: ignore[arg-type]

    assert len(coordinator.requests) == 1
    assert set(codes.values()) == {25}
    assert codes.keys() < MANY.keys()


def test_an_offset_with_large_metadata_is_still_sent():
    huge = {FOO: Committed(offset=1, metadata="m" * (groups.COMMIT_BYTES_MAX + 1))}

    assert asyncio.run(groups.commit_offsets(Coordinator(), "g", huge)) == {FOO: 0}  # type: ignore[arg-type]
