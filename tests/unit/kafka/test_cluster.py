"""What a cluster's client decides without a broker: addresses, what it believes, how long it waits."""

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


def answer(*, leader: int, epoch: int, topic_id: uuid.UUID = _IDS[0]) -> MetadataResponse:
    """Metadata of one topic with one partition."""
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


def believed(*answers: MetadataResponse) -> Metadata:
    """What is believed after *answers*."""
    metadata = EMPTY
    for one in answers:
        metadata = merged(metadata, one, requested=["orders"])
    return metadata


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("east:9092", (("east", 9092),)),
        (" a.b:1 ,, SASL_SSL://c-d:65535", (("a.b", 1), ("c-d", 65535))),
        ("[fe80::1%eth0]:9092,127.0.0.1:9093", (("fe80::1%eth0", 9092), ("127.0.0.1", 9093))),
    ],
)
def test_addresses_are_read_as_java_reads_them(text: str, expected: tuple[tuple[str, int], ...]) -> None:
    """Names, IPv6 in brackets, and a protocol before them."""
    assert parse_addresses(text) == expected


@pytest.mark.parametrize("text", ["", " , ", "east", "east:", "east:0", "east:65536", "a:1,b c:2", ":9092"])
def test_wrong_address_names_the_setting(text: str) -> None:
    """Nothing is tried with an address that cannot be one."""
    with pytest.raises(InvalidSettingError, match=r"^bootstrap\.servers: "):
        parse_addresses(text)


def test_older_leader_epoch_is_not_believed() -> None:
    """A broker that lags behind must not lead us back to the leader that was left."""
    assert believed(answer(leader=2, epoch=5), answer(leader=1, epoch=4)).leader("orders", 0) == 2
    assert believed(answer(leader=2, epoch=5), answer(leader=1, epoch=6)).leader("orders", 0) == 1


def test_recreated_topic_begins_with_a_new_epoch() -> None:
    """With another topic id the lower epoch is the newer one."""
    metadata = believed(answer(leader=2, epoch=5), answer(leader=1, epoch=0, topic_id=_IDS[1]))
    assert metadata.leader("orders", 0) == 1


def test_partial_answer_keeps_other_topics_and_whole_one_does_not() -> None:
    """Only an answer about all topics says that one is gone."""
    metadata = believed(answer(leader=1, epoch=0))
    nothing = MetadataResponse(cluster_id="abc", controller_id=1, brokers=[], topics=[])
    assert set(merged(metadata, nothing, requested=["other"]).topics) == {"orders"}
    assert set(merged(metadata, nothing, requested=None).topics) == set()
    assert set(merged(metadata, nothing, requested=None).brokers) == {1}


def test_absent_leader_is_none() -> None:
    """-1, an unknown partition and an unknown topic are all "no leader"."""
    metadata = believed(answer(leader=-1, epoch=3))
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
def test_codes_become_our_errors(code: int, kind: type[ClusterError]) -> None:
    """What the user can act on has its own class; the rest keeps code and name."""
    with pytest.raises(kind):
        raise_for(code, cluster="east", request="Produce", subject="orders")


def test_a_write_refused_for_too_few_replicas_names_both_settings() -> None:
    """So does a stalled partition (`stall_detection`)."""
    error = error_for(19, cluster="west", request="Produce", subject="mm2-identity.A.internal-0")

    assert str(error).startswith(
        "Produce for mm2-identity.A.internal-0 failed on cluster west: NOT_ENOUGH_REPLICAS (19); start the brokers"
    )
    assert "(replication.factor)" in str(error)
    assert "min.insync.replicas" in str(error)


def test_whether_a_broker_error_is_retriable_is_what_the_protocol_says_of_its_code() -> None:
    """NOT_LEADER, NOT_ENOUGH_REPLICAS, THROTTLING_QUOTA_EXCEEDED; OUT_OF_ORDER_SEQUENCE, INVALID_TOPIC, an unknown one."""
    errors = [error_for(code, cluster="east", request="Produce") for code in (6, 19, 89, 45, 17, 9999)]

    assert {BrokerError} == set(map(type, errors))
    assert [True, True, True, False, False, False] == [error.retriable for error in errors]


def test_success_raises_nothing_and_unknown_codes_have_a_name() -> None:
    """0 is success; a code newer than our table is shown by its number."""
    raise_for(0, cluster="east", request="Produce")
    assert [name_of(code) for code in (0, 6, 36, 9999)] == [
        "NONE",
        "NOT_LEADER_OR_FOLLOWER",
        "TOPIC_ALREADY_EXISTS",
        "ERROR_9999",
    ]


def test_the_error_of_an_abandoned_bootstrap_is_not_reported() -> None:
    """The call that began it has run into its own timeout."""

    async def main() -> None:
        is_over = asyncio.Event()

        async def silent(_: Broker) -> None:
            await is_over.wait()

        async with scripted(silent) as port:
            cluster = _cluster(port)
            with pytest.raises(UnreachableError):
                await cluster.call(MetadataRequest(topics=[]), timeout_s=0.05)
            is_over.set()
            await _wait_for_tasks()

    assert _reported(main) == []


def test_the_error_of_an_abandoned_refresh_is_not_reported() -> None:
    """Its caller was cancelled, and the password cannot be resolved."""

    async def main() -> None:
        caller = asyncio.create_task(_cluster(9092, resolve=_refuse).refresh())
        await asyncio.sleep(0)
        caller.cancel()
        await _wait_for_tasks()

    assert _reported(main) == []


def test_a_reference_that_cannot_be_resolved_is_named_with_its_cluster() -> None:
    def unset(_: Mapping[str, str]) -> Mapping[str, str]:
        raise UnresolvedReferenceError(
            key="sasl.jaas.config",
            reference="${env:PASSWORD}",
            problem="the environment has no such variable",
        )

    with pytest.raises(UnresolvedReferenceError, match=r"^sasl\.jaas\.config of cluster \w+: the reference "):
        asyncio.run(_cluster(9092, resolve=unset).refresh())


def test_the_refreshes_of_a_start_do_not_wait_and_later_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that stands still: Java waits retry.backoff.ms between any two."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float) -> None:
        waits.append(round(delay_s, 3))
        await sleep(0)

    async def call(_: MetadataRequest, **_options: float) -> MetadataResponse:
        return answer(leader=1, epoch=1)

    async def main() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 1_000.0)
        cluster = _cluster(9092)
        monkeypatch.setattr(cluster, "call", call)
        for _ in range(REFRESHES_AT_ONCE + 2):
            await cluster.refresh(["orders"])

    monkeypatch.setattr(asyncio, "sleep", noted)
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
    """Return what asyncio reports about the tasks of *main*."""
    found: list[str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context["message"]))
        await main()
        gc.collect()

    asyncio.run(run())
    return found
