"""Ends a flow with a partition that cannot be fenced, and compares copies before their source is sealed."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.observation import PartitionEnd, ReverseFlow, SealVerification
from mirrorflow_core.switchover.seal import PartitionSeal, Seal
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.transaction_log import DecidedRecords
from mirrorflow_replicator.switchover import flow_mover
from mirrorflow_replicator.switchover.flow_end import WaitingPartitions
from mirrorflow_replicator.switchover.flow_mover import FlowMover
from mirrorflow_replicator.switchover.range_verification import Comparison, SourceTails, Tail


class Flows:
    """The settings of a pair, and its clusters, which are only passed on."""

    forward = forward_groups = source = target = None


def test_ending_a_flow_fails_if_a_partition_cannot_be_fenced(
    monkeypatch: pytest.MonkeyPatch,
):
    """If the call waited, the switchover could not roll back, and writes would stay refused."""
    waiting = {TopicPartition("orders", partition): _leaderless(partition) for partition in (1, 0)}

    async def end_flow(*_: Any, on_waiting: Callable[[WaitingPartitions], None], **__: Any) -> None:
        while True:
            on_waiting(waiting)

    monkeypatch.setattr(flow_mover, "end_flow", end_flow)
    parts: Any = Flows
    with pytest.raises(UnreachableError) as raised:
        asyncio.run(FlowMover(parts, parts, parts).end("to-west"))
    assert raised.value is waiting[TopicPartition("orders", 0)]


@pytest.mark.parametrize(
    ("sealed_end", "copy_end", "comparisons"),
    [(7, 9, 1), (8, 9, 2), (7, 10, 2)],
    ids=["unchanged", "source has grown", "copy has grown"],
)
def test_an_early_comparison_counts_only_while_neither_log_has_grown(
    monkeypatch: pytest.MonkeyPatch, sealed_end: int, copy_end: int, comparisons: int
):
    partition, compared = TopicPartition("orders", 0), list[SourceTails]()
    read = list[Mapping[TopicPartition, int]]()

    async def read_source_tails(*arguments: Any, key: str, **_: object) -> SourceTails:
        read.append(arguments[3])
        return SourceTails(key=key, tails={partition: Tail(records=())}, compacted=())

    async def compare_newest(*arguments: Any, **_: object) -> dict[TopicPartition, Comparison]:
        compared.append(arguments[2])
        return {partition: Comparison(records=1, difference="orders-0 differs", has_sealed_digest=True)}

    ends = iter([9, copy_end, copy_end])

    async def copy_ends(_: object) -> dict[TopicPartition, PartitionEnd]:
        end = next(ends)
        return {partition: PartitionEnd(topic_id="id", end=end, last_stable=end)}

    monkeypatch.setattr(flow_mover, "compare_newest", compare_newest)
    monkeypatch.setattr(flow_mover, "read_source_tails", read_source_tails)
    monkeypatch.setattr(FlowMover, "copy_ends", copy_ends)
    parts: Any = Flows
    mover = FlowMover(parts, parts, parts)
    sealed = replace(seal(sealed_end), digest_key=mover._digest_key)

    async def verify() -> None:
        await mover.verify_ahead({partition: PartitionEnd(topic_id="id", end=7, last_stable=7)})
        await mover.verify(sealed)

    asyncio.run(verify())

    assert comparisons == len(compared)
    assert len(read) == 1 + (sealed_end != 7)
    assert mover.verification == SealVerification(
        seal_sha256=sealed.sha256, differences=("orders-0 differs",), digests_equal=1
    )


class ClockOfSleeps:
    """The parts of `asyncio` that a wait needs; its time passes only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def get_running_loop(self) -> SimpleNamespace:
        return SimpleNamespace(time=lambda: self.now_s)

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


BACK = Claim(flow="back", process="host/1/a", source_alias="west", tasks=1, lock_epoch=1, time_ms=5)


def mover_of(monkeypatch: pytest.MonkeyPatch, claims: list[Claim], *, has_copied: bool) -> FlowMover:
    """Returns the mover of a process that reads *claims* of the reverse flow, one after the other; the last one stays."""
    remaining = list(claims)

    async def decided_claims(cluster: object, *_: object) -> DecidedRecords[Claim]:
        if cluster == "west":
            return DecidedRecords((replace(BACK, source_alias="east"),), ())
        return DecidedRecords((remaining.pop(0) if len(remaining) > 1 else remaining[0],), ())

    async def require_no_conflict(*_: object) -> None:
        pass

    async def copy_ends(_: object) -> dict[TopicPartition, PartitionEnd]:
        return {}

    async def may_have_copied(_: object) -> bool:
        return has_copied

    monkeypatch.setattr(FlowMover, "_may_have_copied", may_have_copied)
    monkeypatch.setattr(flow_mover, "decided_claims", decided_claims)
    monkeypatch.setattr(flow_mover, "require_no_conflict", require_no_conflict)
    monkeypatch.setattr(flow_mover, "asyncio", ClockOfSleeps())
    monkeypatch.setattr(FlowMover, "copy_ends", copy_ends)
    settings: Any = SimpleNamespace(
        forward=None, back=SimpleNamespace(flow="west-to-east"), forward_groups=None, source="east", to="west"
    )
    clusters: Any = SimpleNamespace(source="east", target="west")
    return FlowMover(settings, clusters, settings)


@pytest.mark.parametrize(
    ("claims", "has_copied", "sentence"),
    [
        ([BACK], False, ""),
        (
            [BACK],
            True,
            (
                "spec.members.west.flow: flow west-to-east was killed (process 1 on host host), and may have copied records; if east needs "
                "no more of them, reset the stored offsets of that flow, and repeat the switchover."
            ),
        ),
        (
            [BACK, BACK, replace(BACK, time_ms=6)],
            True,
            "spec.members.west.flow: flow west-to-east runs (process 1 on host host), and would copy records back; stop it.",
        ),
        ([replace(BACK, left=True)], True, ""),
    ],
    ids=["killed long ago", "killed while it copied", "renewed", "left"],
)
def test_a_reverse_flow_counts_as_running_only_if_its_claim_is_renewed(
    monkeypatch: pytest.MonkeyPatch, claims: list[Claim], sentence: str, *, has_copied: bool
):
    mover = mover_of(monkeypatch, claims, has_copied=has_copied)

    assert sentence == asyncio.run(mover.why_not_ready())
    is_free = not sentence
    reverse = asyncio.run(mover.reverse())
    assert reverse is not None
    assert is_free != reverse.is_copying


@pytest.mark.parametrize(
    ("committed", "pending", "ended"),
    [
        (BACK, None, ""),
        (BACK, replace(BACK, time_ms=6), ""),
        (replace(BACK, ended="one"), None, "one"),
        (BACK, replace(BACK, ended="one"), None),
        (replace(BACK, ended="one"), BACK, None),
        (None, replace(BACK, ended="one"), None),
    ],
    ids=["runs", "renews its claim", "ended", "end pending", "clearing pending", "first hold pending"],
)
def test_a_pending_claim_that_ends_a_flow_or_clears_its_end_makes_its_state_unknown(
    monkeypatch: pytest.MonkeyPatch, committed: Claim | None, pending: Claim | None, ended: str | None
):
    """Then a rollback clears the end, and does not take the flow for one that runs."""
    claims = DecidedRecords(
        () if committed is None else (committed,), (), {} if pending is None else {7: (pending,)}
    )

    async def decided_claims(*_: object) -> DecidedRecords[Claim]:
        return claims

    monkeypatch.setattr(flow_mover, "decided_claims", decided_claims)
    nothing: Any = None

    flow_end = asyncio.run(flow_mover.observed_end(nothing, nothing))
    reverse = asyncio.run(flow_mover.observed_reverse(nothing, nothing))

    assert (flow_end and flow_end.switchover) == ended
    assert (reverse and reverse.held_by) == ended


@pytest.mark.parametrize(
    ("claims", "has_copied", "is_copying"),
    [
        ([BACK], False, False),
        ([BACK], True, True),
        ([BACK, BACK, replace(BACK, time_ms=6)], False, True),
    ],
    ids=["killed long ago", "killed while it copied", "renewed"],
)
def test_a_process_that_resumes_watches_a_killed_reverse_flow_again(
    monkeypatch: pytest.MonkeyPatch, claims: list[Claim], *, has_copied: bool, is_copying: bool
):
    """The process that has checked it was killed before it held that flow. Only the states before the hold need it."""
    mover = mover_of(monkeypatch, claims, has_copied=has_copied)

    def copies(flow: ReverseFlow | None) -> bool:
        assert flow is not None
        return flow.is_copying

    assert is_copying == copies(asyncio.run(mover.reverse(is_to_be_held=True)))
    assert is_copying == copies(asyncio.run(mover.reverse()))
    assert copies(asyncio.run(mover_of(monkeypatch, claims, has_copied=has_copied).reverse()))


def seal(end: int) -> Seal:
    orders = PartitionSeal(topic="orders", partition=0, topic_id="id", end=end, last_stable=end, copied=end)
    return Seal(pair="east-west", switchover="one", epoch=1, attempt=1, partitions=(orders,))


def _leaderless(partition: int) -> UnreachableError:
    return UnreachableError(
        cluster="west", addresses="west:9092", problem=f"orders-{partition} has no leader"
    )
