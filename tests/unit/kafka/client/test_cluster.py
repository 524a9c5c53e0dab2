"""Decisions of a cluster client: address parsing, metadata merging, error mapping and pauses."""

import asyncio
import gc
import uuid
from collections.abc import Awaitable, Callable, Mapping

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from mirrorflow_core.errors import (
    AuthenticationFailedError,
    BrokerError,
    ClusterError,
    InvalidSettingError,
    NotAuthorizedError,
    UnreachableError,
    UnresolvedReferenceError,
    UnsupportedBrokerError,
)
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.wire.error_codes import error_for, name_of, raise_for
from mirrorflow_kafka.client.cluster import REFRESHES_AT_ONCE, Cluster
from mirrorflow_kafka.client.metadata import EMPTY, Metadata, merged
from mirrorflow_kafka.security.client_security import parse_addresses
from mirrorflow_kafka.security.secret_rotation import Resolve
from tests.unit.kafka.scripted import Broker, scripted

_TOPIC = MetadataResponse.MetadataResponseTopic
_IDS = uuid.UUID(int=1), uuid.UUID(int=2)


def metadata_response(*, leader: int, epoch: int, topic_id: uuid.UUID = _IDS[0]) -> MetadataResponse:
    """Returns metadata of one topic with one partition."""
    partition = _TOPIC.MetadataResponsePartition(
        partition_index=0,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=[1, 2],
        isr_nodes=[1],
        error_code=0,
    )
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="east", port=9092, rack=None)
    topic = _TOPIC(name="orders", topic_id=topic_id, is_internal=False, error_code=0, partitions=[partition])
    return MetadataResponse(cluster_id="abc", controller_id=1, brokers=[broker], topics=[topic])


def merged_metadata(*responses: MetadataResponse) -> Metadata:
    """Returns the metadata after merging *responses*."""
    metadata = EMPTY
    for response in responses:
        metadata = merged(metadata, response, requested=["orders"])
    return metadata


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("east:9092", (("east", 9092),)),
        (" a.b:1 ,, SASL_SSL://c-d:65535", (("a.b", 1), ("c-d", 65535))),
        ("[fe80::1%eth0]:9092,127.0.0.1:9093", (("fe80::1%eth0", 9092), ("127.0.0.1", 9093))),
    ],
)
def test_addresses_are_parsed_as_in_java(text: str, expected: tuple[tuple[str, int], ...]) -> None:
    """They may have IPv6 addresses in brackets and a protocol prefix."""
    assert parse_addresses(text) == expected


@pytest.mark.parametrize("text", ["", " , ", "east", "east:", "east:0", "east:65536", "a:1,b c:2", ":9092"])
def test_an_invalid_address_is_an_error_of_its_setting(text: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"^bootstrap\.servers: "):
        parse_addresses(text)


def test_metadata_with_an_older_leader_epoch_is_ignored() -> None:
    """Outdated metadata of a broker must not restore the former leader."""
    assert (
        merged_metadata(metadata_response(leader=2, epoch=5), metadata_response(leader=1, epoch=4)).leader(
            "orders", 0
        )
        == 2
    )
    assert (
        merged_metadata(metadata_response(leader=2, epoch=5), metadata_response(leader=1, epoch=6)).leader(
            "orders", 0
        )
        == 1
    )


def test_a_recreated_topic_starts_with_a_new_epoch() -> None:
    """With a different topic id, a lower epoch is newer."""
    metadata = merged_metadata(
        metadata_response(leader=2, epoch=5), metadata_response(leader=1, epoch=0, topic_id=_IDS[1])
    )
    assert metadata.leader("orders", 0) == 1


def test_only_a_response_about_all_topics_removes_topics() -> None:
    """A response about some topics keeps the others."""
    metadata = merged_metadata(metadata_response(leader=1, epoch=0))
    nothing = metadata_response(leader=1, epoch=0)
    nothing.topics = []
    assert set(merged(metadata, nothing, requested=["other"]).topics) == {"orders"}
    assert set(merged(metadata, nothing, requested=None).topics) == set()


def test_metadata_without_brokers_is_ignored() -> None:
    """A broker with ZooKeeper responds so after its start, until the controller has sent it the metadata; Java's client ignores it, too."""
    metadata = merged_metadata(metadata_response(leader=1, epoch=0))
    starting = MetadataResponse(cluster_id="abc", controller_id=-1, brokers=[], topics=[])

    assert merged(metadata, starting, requested=None) == metadata


def test_a_missing_leader_is_none() -> None:
    """This includes leader -1, an unknown partition and an unknown topic."""
    metadata = merged_metadata(metadata_response(leader=-1, epoch=3))
    assert [metadata.leader(*key) for key in (("orders", 0), ("orders", 1), ("other", 0))] == [None] * 3


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (29, NotAuthorizedError),
        (30, NotAuthorizedError),
        (31, NotAuthorizedError),
        (53, NotAuthorizedError),
        (35, UnsupportedBrokerError),
        (58, AuthenticationFailedError),
        (45, BrokerError),
        (9999, BrokerError),
    ],
)
def test_error_codes_are_mapped_to_error_classes(code: int, kind: type[ClusterError]) -> None:
    """Errors that a user can fix have their own class. Others keep the code and the name."""
    with pytest.raises(kind):
        raise_for(code, cluster="east", request="Produce", subject="orders")


def test_a_write_refused_for_too_few_replicas_names_both_settings() -> None:
    """The message of a stalled partition does too (`stall_detection`)."""
    error = error_for(19, cluster="west", request="Produce", subject="mm2-identity.A.internal-0")

    assert str(error).startswith(
        "Produce for mm2-identity.A.internal-0 failed on cluster west: NOT_ENOUGH_REPLICAS (19); start the brokers"
    )
    assert "(replication.factor)" in str(error)
    assert "min.insync.replicas" in str(error)


def test_the_protocol_defines_which_broker_errors_are_retriable() -> None:
    """NOT_LEADER, NOT_ENOUGH_REPLICAS and THROTTLING_QUOTA_EXCEEDED are retriable."""
    errors = [error_for(code, cluster="east", request="Produce") for code in (6, 19, 89, 45, 17, 9999)]

    assert {BrokerError} == set(map(type, errors))
    assert [True, True, True, False, False, False] == [error.retriable for error in errors]


def test_success_is_no_error_and_unknown_codes_have_a_name() -> None:
    """0 is success. A code that is not in the table has its number as its name."""
    raise_for(0, cluster="east", request="Produce")
    assert [name_of(code) for code in (0, 6, 36, 9999)] == [
        "NONE",
        "NOT_LEADER_OR_FOLLOWER",
        "TOPIC_ALREADY_EXISTS",
        "ERROR_9999",
    ]


def test_an_invalid_bootstrap_host_does_not_hide_the_others() -> None:
    """The host has an empty label. The cluster is reached at the second address."""

    async def script(broker: Broker) -> None:
        await broker.respond_to_api_versions()
        request = await broker.next()
        body = metadata_response(leader=1, epoch=1).encode(version=request.version)
        await broker.send(request.response(bytes(body), flexible=True))
        await broker.next()

    async def main() -> None:
        async with scripted(script) as port:
            properties = {"bootstrap.servers": f"kafka..svc:9092,127.0.0.1:{port}"}
            settings = ClientSettings(alias="west", client_id="test", properties=properties)
            cluster = await Cluster.connect(settings, resolve=dict)
            assert cluster.cluster_id == "abc"
            await cluster.close()

    asyncio.run(main())


def test_the_error_of_an_abandoned_bootstrap_is_not_reported() -> None:
    """The call that started the bootstrap has timed out."""

    async def main() -> None:
        is_over = asyncio.Event()

        async def never_respond(_: Broker) -> None:
            await is_over.wait()

        async with scripted(never_respond) as port:
            cluster = _cluster(port)
            with pytest.raises(UnreachableError):
                await cluster.call(MetadataRequest(topics=[]), timeout_s=0.05)
            is_over.set()
            await _wait_for_tasks()

    assert _reported(main) == []


def test_the_error_of_an_abandoned_refresh_is_not_reported() -> None:
    """The caller is cancelled, and the password cannot be resolved."""

    async def main() -> None:
        caller = asyncio.create_task(_cluster(9092, resolve=_refuse).refresh())
        await asyncio.sleep(0)
        caller.cancel()
        await _wait_for_tasks()

    assert _reported(main) == []


def test_the_error_of_an_unresolved_reference_names_its_cluster() -> None:
    def unset(_: Mapping[str, str]) -> Mapping[str, str]:
        raise UnresolvedReferenceError(
            key="sasl.jaas.config",
            reference="${env:PASSWORD}",
            problem="the environment has no such variable",
        )

    with pytest.raises(UnresolvedReferenceError, match=r"^sasl\.jaas\.config of cluster \w+: the reference "):
        asyncio.run(_cluster(9092, resolve=unset).refresh())


def test_the_first_refreshes_run_at_once_and_later_ones_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock does not advance. Java waits retry.backoff.ms between any two refreshes."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def record_pause(delay_s: float) -> None:
        waits.append(round(delay_s, 3))
        await sleep(0)

    async def call(_: MetadataRequest, **_options: float) -> MetadataResponse:
        return metadata_response(leader=1, epoch=1)

    async def main() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 1_000.0)
        cluster = _cluster(9092)
        monkeypatch.setattr(cluster, "call", call)
        for _ in range(REFRESHES_AT_ONCE + 2):
            await cluster.refresh(["orders"])

    monkeypatch.setattr(asyncio, "sleep", record_pause)
    asyncio.run(main())

    assert waits == [0.0] * (REFRESHES_AT_ONCE + 1) + [0.1]


def _cluster(port: int, *, resolve: Resolve = dict) -> Cluster:
    properties = {"bootstrap.servers": f"127.0.0.1:{port}"}
    return Cluster(ClientSettings(alias="west", client_id="test", properties=properties), resolve=resolve)


def _refuse(_: Mapping[str, str]) -> dict[str, str]:
    raise InvalidSettingError(key="sasl.jaas.config", problem="the password's file is missing")


async def _wait_for_tasks() -> None:
    current = asyncio.current_task()
    await asyncio.wait([task for task in asyncio.all_tasks() if task is not current])


def _reported(main: Callable[[], Awaitable[None]]) -> list[str]:
    """Returns the messages that asyncio reports about the tasks of *main*."""
    messages: list[str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: messages.append(context["message"])
        )
        await main()
        gc.collect()

    asyncio.run(run())
    return messages
