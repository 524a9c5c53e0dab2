"""A request that is sent again after a lost response must be harmless if the first copy arrives later."""

import ast
import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from mirrorflow_core.errors import ConnectionLostError, UnreachableError
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.wire.error_codes import CONCURRENT_TRANSACTIONS, NONE, NOT_COORDINATOR
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.metadata import Broker
from mirrorflow_kafka.client.repeatable_requests import REPETITIONS, may_repeat

REPLICATOR = Path(__file__).parents[4] / "replicator"
WRITTEN_BY_HAND = {"Fetch", "Produce"}  # encoded by mirrorflow_core.wire
SHARE_MESSAGES = "mirrorflow_kafka.admin.share_messages"  # kafka-python has no classes for them
COORDINATOR = 1, "task-0"


def used_requests() -> set[str]:
    """The types of all requests that the replicator sends."""
    imported = {
        name.name
        for file in REPLICATOR.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("kafka.protocol", SHARE_MESSAGES))
        for name in node.names
        if name.name.endswith("Request")
    }
    return {name.removesuffix("Request") for name in imported} | WRITTEN_BY_HAND


def test_the_table_has_exactly_the_requests_that_are_sent() -> None:
    assert set(REPETITIONS) == used_requests()


def test_a_request_that_is_not_in_the_table_is_sent_once() -> None:
    assert not may_repeat("DeleteTopics")


class Coordinators:
    """Responds to each request with the next error code. None breaks the connection."""

    def __init__(self, *codes: int | None) -> None:
        self.codes = list(codes)
        self.requests = 0

    async def call(self, request: Any, *, timeout_s: float) -> Any:
        assert timeout_s > 0
        self.requests += 1
        code = self.codes.pop(0)
        if code is None:
            raise ConnectionLostError(cluster="west", address="b:9092", problem=f"{request.name} is lost")
        return SimpleNamespace(error_code=code)


def call(coordinators: Coordinators, request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))
    settings = ClientSettings(
        alias="west", client_id="test", properties={"bootstrap.servers": "127.0.0.1:9092"}
    )

    async def route(*_: Any, **__: Any) -> Coordinators:
        return coordinators

    async def main() -> Any:
        cluster = Cluster(settings, resolve=dict)
        monkeypatch.setattr(cluster, "_route", route)
        return await cluster.call(request, coordinator=COORDINATOR)

    return asyncio.run(main())


class MovingCoordinator:
    """Brokers whose first coordinator does not respond. Each lookup returns the next coordinator."""

    def __init__(self) -> None:
        self.lookups = iter([3, 1])

    async def connection(self, node_id: int = -1) -> Any:
        async def call(_: Any, **__: Any) -> Any:
            if node_id == 3:
                await asyncio.Event().wait()
            broker_id = next(self.lookups) if node_id < 0 else node_id
            return SimpleNamespace(error_code=NONE, node_id=broker_id, coordinators=[])

        return SimpleNamespace(call=call)


END = EndTxnRequest(transactional_id="task-0", producer_id=1, producer_epoch=2, committed=True, max_version=1)
ADD = AddPartitionsToTxnRequest(max_version=1)
INITIALIZE = InitProducerIdRequest(transactional_id="task-0", transaction_timeout_ms=60_000)


def test_a_request_with_a_harmless_late_copy_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinators = Coordinators(None, None, NONE)

    assert call(coordinators, INITIALIZE, monkeypatch).error_code == NONE
    assert coordinators.requests == 3


@pytest.mark.parametrize("request_", [ADD, END], ids=["AddPartitionsToTxn", "EndTxn"])
def test_a_transaction_request_is_not_repeated_after_a_lost_response(
    request_: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late copy would start a new transaction with the same epoch, or end the next transaction."""
    coordinators = Coordinators(None, NONE)

    with pytest.raises(UnreachableError, match=f"{request_.name} is lost"):
        call(coordinators, request_, monkeypatch)
    assert coordinators.requests == 1


def test_an_end_txn_that_was_refused_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The response shows that the request was not executed and that no copy is in flight."""
    coordinators = Coordinators(NOT_COORDINATOR, CONCURRENT_TRANSACTIONS, NONE)

    assert call(coordinators, END, monkeypatch).error_code == NONE
    assert coordinators.requests == 3


def test_an_unresponsive_coordinator_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator may have moved, and its former broker does not respond to this process."""
    brokers = MovingCoordinator()
    settings = ClientSettings(
        alias="west", client_id="test", properties={"bootstrap.servers": "127.0.0.1:9092"}
    )

    async def main() -> Any:
        cluster = Cluster(settings, resolve=dict)
        cluster.metadata = replace(
            cluster.metadata, brokers={node: Broker(node_id=node, host="b", port=9092) for node in (1, 3)}
        )
        monkeypatch.setattr(cluster, "connection", brokers.connection)
        monkeypatch.setattr(cluster, "_any_connection", brokers.connection)
        with pytest.raises(UnreachableError, match="AddPartitionsToTxnRequest was not answered"):
            await cluster.call(ADD, coordinator=COORDINATOR, timeout_s=0.01)
        return await cluster.call(INITIALIZE, coordinator=COORDINATOR)

    assert asyncio.run(main()).node_id == 1
