"""Ending a flow: what is stored after its end, and when the end may be read."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.transaction_log import DecidedRecords
from mirrorflow_replicator.switchover import flow_end
from mirrorflow_replicator.switchover.flow_end import end_flow, ended_flow

SETTINGS: Any = SimpleNamespace(source_alias="east", name="east-to-west")
RUNNING = Claim(
    flow="east-to-west", process="host/1/a", source_alias="east", tasks=1, lock_epoch=1, time_ms=5
)
ENDED = replace(RUNNING, process=None, ended="to-west")
LOST_RESPONSE = UnreachableError(cluster="west", addresses="lock", problem="no response")


class Runner:
    """Returns prepared responses by the name of the steps, and keeps the names."""

    def __init__(self, **responses: Any) -> None:
        self.responses = responses
        self.ran: list[str] = []

    async def run(self, steps: Any) -> Any:
        name = steps.__name__
        steps.close()
        self.ran.append(name)
        response = self.responses[name]
        if isinstance(response, list):
            response = response.pop(0) if len(response) > 1 else response[0]
        if isinstance(response, Exception):
            raise response
        await asyncio.sleep(0)
        return response


def opened(monkeypatch: pytest.MonkeyPatch, runner: Runner) -> None:
    """Lets `flow_end` use *runner* for each flow that it opens."""

    async def open_ending(*_: object) -> SimpleNamespace:
        return SimpleNamespace(runner=runner, settings=SETTINGS)

    async def ownerless_plan(_: object) -> None:
        return None

    async def with_partitions(*_: object) -> None:
        return None

    async def fence_partitions(*_: object) -> SimpleNamespace:
        return SimpleNamespace(producers=None, points={}, topic_ids={})

    async def read_end(_: object, switchover: str) -> str:
        return switchover

    for name, replacement in {
        "open_ending": open_ending,
        "ownerless_plan": ownerless_plan,
        "_with_partitions": with_partitions,
        "_fence_partitions": fence_partitions,
        "_read_end": read_end,
    }.items():
        monkeypatch.setattr(flow_end, name, replacement)


def test_no_claim_follows_an_end_whose_response_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end may have been stored: a later claim without it would let the flow continue."""
    runner = Runner(take_flow=SimpleNamespace(), store_end=LOST_RESPONSE, renew_claim=True)
    opened(monkeypatch, runner)

    with pytest.raises(UnreachableError):
        asyncio.run(end_flow(SETTINGS, SETTINGS, "to-west"))

    assert runner.ran == ["take_flow", "store_end"]


def test_the_flow_is_left_if_its_partitions_cannot_be_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(take_flow=SimpleNamespace(), renew_claim=True)
    opened(monkeypatch, runner)

    async def fence_partitions(*_: object) -> None:
        raise LOST_RESPONSE

    monkeypatch.setattr(flow_end, "_fence_partitions", fence_partitions)
    with pytest.raises(UnreachableError):
        asyncio.run(end_flow(SETTINGS, SETTINGS, "to-west"))

    assert runner.ran == ["take_flow", "renew_claim"]


def test_a_renewal_under_way_ends_before_the_end_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled renewal could be stored after the end, and would remove it."""
    order: list[str] = []
    is_renewing = asyncio.Event()

    class SlowRenewals(Runner):
        async def run(self, steps: Any) -> Any:
            if steps.__name__ == "renew_claim":
                steps.close()
                order.append("renewal begins")
                is_renewing.set()
                for _ in range(20):
                    await asyncio.sleep(0)
                order.append("renewal ends")
                return True
            order.append(steps.__name__)
            return await super().run(steps)

    runner = SlowRenewals(take_flow=SimpleNamespace(), store_end=True)
    opened(monkeypatch, runner)

    async def fence_partitions(*_: object) -> SimpleNamespace:
        await is_renewing.wait()
        return SimpleNamespace(producers=None, points={}, topic_ids={})

    monkeypatch.setattr(flow_end, "_fence_partitions", fence_partitions)
    monkeypatch.setattr(flow_end, "RENEW_S", 0)
    asyncio.run(end_flow(SETTINGS, SETTINGS, "to-west"))

    assert order == ["take_flow", "renewal begins", "renewal ends", "store_end"]


def test_an_end_whose_marker_is_not_written_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pending = DecidedRecords((RUNNING,), (ENDED,), {7: (ENDED,)})
    runner = Runner(read_claims=[pending, pending, DecidedRecords((RUNNING, ENDED), ())])
    opened(monkeypatch, runner)

    ended: Any = asyncio.run(ended_flow(SETTINGS, SETTINGS, "to-west"))

    assert ended == "to-west"
    assert runner.ran == ["read_claims"] * 3
