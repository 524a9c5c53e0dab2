"""A switchover ends a flow and stores its final positions. Newcomers do not claim the flow until the end is cleared."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.broker_requests import (
    InitProducerId,
    ReadClaims,
    ReadEpochEnd,
    Refused,
    Request,
    Transaction,
)
from mirrorflow_core.writer.claim import Claim, decode_claim, encode_claim
from mirrorflow_core.writer.flow_end import clear_end, store_end
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_core.writer.flow_plan import SessionStart, TopicIds, WritePoint
from mirrorflow_core.writer.ownership import FlowEnded, Ownership, recover_task, take_flow
from mirrorflow_core.writer.transaction_log import LogBatch
from tests.unit.core.writer.test_takeover import IDS, ORDERS, Brokers, plan, stored

COPIES: Mapping[str, TopicIds] = {"orders": TopicIds("id", "copy-id", "east.orders")}


class ClaimingBrokers(Brokers):
    """Brokers that keep the claims, and refuse the requests in *refuses* and each read of the source.

    The markers of `pending` claims are missing until the lock is initialized, which commits or aborts them.
    """

    def __init__(self, *claims: Claim, refuses: str = "") -> None:
        super().__init__([replace(stored(ORDERS, target_topic="east.orders"), left=False, writer=IDS)])
        self.claims = list(claims)
        self.pending: list[Claim] = []
        self.aborts_pending = False
        self.refuses = refuses

    def respond(self, request: Request) -> Any:
        match request:
            case ReadClaims():
                return tuple(
                    LogBatch(
                        offset,
                        offset,
                        0,
                        0,
                        0,
                        is_transactional=offset >= len(self.claims),
                        records=((offset, claim),),
                    )
                    for offset, claim in enumerate((*self.claims, *self.pending))
                )
            case InitProducerId(name) if name.endswith("lock"):
                self.claims += [] if self.aborts_pending else self.pending
                self.pending.clear()
            case Transaction(claim=claim) if claim is not None:
                if self.refuses == "claim":
                    return Refused(47)
                self.claims.append(claim)
            case Transaction() if self.refuses == "lock" and request.producer.transactional_id.endswith(
                "lock"
            ):
                return Refused(47)
            case ReadEpochEnd(on_target=False):
                raise AssertionError("the source may be lost")
        return super().respond(request)


def end(brokers: ClaimingBrokers, switchover: str = "to-west") -> tuple[Ownership, SessionStart, bool]:
    """Ends the flow as the switchover does."""
    own = replace(plan(copies=COPIES), assignment=(), reads_source=False)
    owned = brokers.run(take_flow(own))
    assert isinstance(owned, Ownership)
    session = brokers.run(recover_task(owned, IDS, [ORDERS]))
    assert isinstance(session, SessionStart)
    is_ended = brokers.run(store_end(owned, session.producers, session.points, COPIES, switchover))
    return owned, session, is_ended


def test_ending_a_flow_stores_final_positions_before_the_claim() -> None:
    brokers = ClaimingBrokers()

    _, session, is_ended = end(brokers)

    final, claimed = brokers.transactions[-2:]
    (position,) = final.positions
    assert is_ended
    assert position.left
    assert position.next_source_offset == session.points[ORDERS].next_source_offset
    assert position.target_end == session.points[ORDERS].records_end
    assert position.revision == session.points[ORDERS].revision + 1
    assert position.source_topic_id == "id"
    assert claimed.claim == brokers.claims[-1]
    assert (brokers.claims[-1].ended, brokers.claims[-1].left) == ("to-west", True)


def test_the_claim_is_not_ended_if_the_final_positions_are_refused() -> None:
    brokers = ClaimingBrokers()
    owned, session, _ = end(brokers)
    del brokers.claims[-1]
    brokers.refuses_positions = True

    assert not brokers.run(store_end(owned, session.producers, session.points, COPIES, "to-west"))
    assert not brokers.claims[-1].ended


def end_many(
    brokers: ClaimingBrokers,
) -> tuple[dict[TopicPartition, WritePoint], list[int], bool]:
    """Ends a flow with 2,500 partitions; returns their points, and how many positions each transaction of the end has stored."""
    owned, session, _ = end(brokers)
    points = {TopicPartition("orders", number): session.points[ORDERS] for number in range(2_500)}
    del brokers.claims[-1]
    brokers.transactions.clear()
    is_ended = brokers.run(store_end(owned, session.producers, points, COPIES, "to-west"))
    return points, [len(transaction.positions) for transaction in brokers.transactions], is_ended


def test_the_positions_of_many_partitions_are_stored_in_several_transactions() -> None:
    """One with all of them could take longer than its timeout, at each attempt."""
    brokers = ClaimingBrokers()

    points, sizes, is_ended = end_many(brokers)

    assert is_ended
    assert sizes == [1_000, 1_000, 500, 0]
    stored_partitions = [
        position.topic_partition for written in brokers.transactions for position in written.positions
    ]
    assert stored_partitions == list(points)
    assert brokers.claims[-1].ended == "to-west"


def test_the_claim_is_not_ended_if_some_of_the_positions_are_refused() -> None:
    class RefusingBrokers(ClaimingBrokers):
        def respond(self, request: Request) -> Any:
            self.refuses_positions = len(self.transactions) == 1  # the second transaction
            return super().respond(request)

    brokers = RefusingBrokers()

    _, sizes, is_ended = end_many(brokers)

    assert not is_ended
    assert sizes == [1_000]
    assert not brokers.claims[-1].ended


def test_a_fenced_switchover_does_not_end_the_flow() -> None:
    brokers = ClaimingBrokers()
    owned, session, _ = end(brokers)
    del brokers.claims[-1]
    brokers.refuses = "claim"

    assert not brokers.run(store_end(owned, session.producers, session.points, COPIES, "to-west"))


def test_a_newcomer_does_not_claim_a_flow_that_ended_before_it_took_the_lock() -> None:
    brokers = ClaimingBrokers()
    end(brokers)
    written = len(brokers.transactions)

    taken = brokers.run(take_flow(plan(ORDERS, copies=COPIES)))

    assert isinstance(taken, FlowEnded)
    assert taken.claim == brokers.claims[-1]
    assert taken.lock.transactional_id == "mirrorflow:east:lock"
    assert not any(
        transaction.claim or transaction.positions for transaction in brokers.transactions[written:]
    )


@pytest.mark.parametrize("switchover", ["to-west", "other"])
def test_only_the_switchover_that_ended_a_flow_clears_the_end(switchover: str) -> None:
    brokers = ClaimingBrokers()
    end(brokers)
    ended = brokers.claims[-1]

    cleared = brokers.run(clear_end(plan(copies={}), switchover))

    if switchover == "to-west":
        assert cleared is True
        assert replace(ended, ended=None, lock_id=0, lock_epoch=0) == replace(
            brokers.claims[-1], lock_id=0, lock_epoch=0
        )
        assert isinstance(brokers.run(take_flow(plan(ORDERS, copies=COPIES))), Ownership)
    else:
        assert isinstance(cleared, FlowEnded)
        assert brokers.claims[-1] == ended


def test_clearing_the_end_of_a_flow_that_has_not_ended_does_not_take_its_lock() -> None:
    brokers = ClaimingBrokers(plan(copies={}).claim)

    assert brokers.run(clear_end(plan(copies={}), "to-west")) is False
    assert brokers.transactions == []


def test_an_end_whose_marker_is_missing_is_cleared() -> None:
    brokers = ClaimingBrokers()
    end(brokers)
    brokers.pending.append(brokers.claims.pop())

    assert brokers.run(clear_end(plan(copies={}), "to-west")) is True
    assert (brokers.claims[-2].ended, brokers.claims[-1].ended) == ("to-west", None)


@pytest.mark.parametrize("has_run", [True, False])
def test_an_end_that_is_aborted_leaves_the_flow_to_the_next_process(*, has_run: bool) -> None:
    claim = plan(copies={}).claim
    brokers = ClaimingBrokers(*([claim] if has_run else []))
    brokers.pending.append(replace(claim, ended="to-west", left=True))
    brokers.aborts_pending = True

    assert brokers.run(clear_end(plan(copies={}), "to-west")) is False
    newest = brokers.claims[-1]
    assert (newest.left, newest.ended, newest.released, newest.has_run) == (True, None, None, has_run)


def test_a_claim_that_is_renewed_does_not_count_as_an_end() -> None:
    claim = plan(copies={}).claim
    brokers = ClaimingBrokers(claim)
    brokers.pending.append(claim)

    assert brokers.run(clear_end(plan(copies={}), "to-west")) is False
    assert brokers.transactions == []


@pytest.mark.parametrize("refuses", ["lock", "claim"])
def test_clearing_the_end_fails_if_a_different_process_has_taken_the_lock(refuses: str) -> None:
    brokers = ClaimingBrokers()
    end(brokers)
    brokers.refuses = refuses

    assert isinstance(brokers.run(clear_end(plan(copies={}), "to-west")), Fenced)
    assert brokers.claims[-1].ended == "to-west"


def test_a_partition_that_cannot_be_fenced_is_returned_as_waiting() -> None:
    brokers = ClaimingBrokers()
    brokers.unread[ORDERS] = MirrorFlowError("no leader")
    owned = brokers.run(take_flow(replace(plan(copies=COPIES), assignment=(), reads_source=False)))
    assert isinstance(owned, Ownership)

    session = brokers.run(recover_task(owned, IDS, [ORDERS]))

    assert isinstance(session, SessionStart)
    assert session.waiting.keys() == {ORDERS}
    assert not session.points


def test_a_claim_with_an_end_can_be_read_by_an_earlier_version() -> None:
    """The earlier version ignores the field. A claim without the field has not ended."""
    claim = replace(plan(copies={}).claim, ended="to-west", left=True)
    key, value = encode_claim(claim)

    assert decode_claim(key, value) == claim
    assert decode_claim(key, value.replace(b'"ended"', b'"unknown"')) == replace(claim, ended=None)
    with pytest.raises(ValueError, match="ended is not a string"):
        decode_claim(key, value.replace(b'"to-west"', b"7"))
