"""Reads from stored positions where a flow has ended and where the reverse flow starts."""

import re

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.diverged_tail import CopiedEnd, DivergedTail, TailState
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_replicator.switchover.diverged_tail import (
    CountedTail,
    TailSurvey,
    copied_ends,
    require_decided,
    reverse_starts,
)
from mirrorflow_replicator.switchover.errors import TailNotKeptError
from mirrorflow_replicator.switchover.flow_end import EndedFlow
from mirrorflow_replicator.switchover.returned_side import require_none_under_way

ORDERS, BILLS, OLD = (TopicPartition(topic, 0) for topic in ("orders", "bills", "old"))


def position(partition: TopicPartition, next_source_offset: int, target_end: int) -> WriterPosition:
    return WriterPosition(
        topic=partition.topic,
        partition=partition.partition,
        next_source_offset=next_source_offset,
        target_end=target_end,
        source_topic_id=f"{partition.topic}-id",
    )


ENDED = EndedFlow(
    switchover="east-west-1",
    positions={ORDERS: position(ORDERS, 10, 12), BILLS: position(BILLS, 5, 5)},
    stopped=(OLD,),
    copies={key: TopicPartition(f"copy-of-{key.topic}", 0) for key in (ORDERS, BILLS, OLD)},
)


def survey(**states: TailState) -> TailSurvey:
    tails = [DivergedTail(partition=TopicPartition(topic, 0), state=state) for topic, state in states.items()]
    return TailSurvey(switchover="east-west-1", tails=tuple(CountedTail(tail=tail) for tail in tails))


def test_the_end_of_a_copy_is_exact_unless_its_partition_had_stopped():
    ends = copied_ends(ENDED)

    assert CopiedEnd(next_offset=10, topic_id="orders-id") == ends[ORDERS]
    assert not ends[OLD].is_exact


@pytest.mark.parametrize("state", [TailState.MISSING, TailState.RECREATED])
def test_the_reverse_flow_copies_a_missing_or_recreated_topic_from_its_beginning(state: TailState):
    starts = reverse_starts(ENDED, survey(orders=TailState.CUT, bills=state))

    assert starts == {TopicPartition("copy-of-orders", 0): 12}


def test_the_reverse_flow_does_not_start_if_the_end_of_a_copy_is_unknown():
    with pytest.raises(TailNotKeptError, match="where the flow has ended in old-0"):
        reverse_starts(ENDED, survey(orders=TailState.CUT, old=TailState.UNDECIDED))


_S, _T = SwitchoverState, SwitchoverType
CONTINUE, ROLL_BACK = "mirrorflow switchover --to west", "mirrorflow switchover rollback"
CONTINUE_UNPLANNED = "mirrorflow switchover --unplanned --accept-loss --to west"


@pytest.mark.parametrize(
    ("kind", "state", "commands"),
    [
        (_T.PLANNED, _S.FORWARD_ENDED, [CONTINUE, ROLL_BACK]),
        (_T.PLANNED, _S.PROMOTING, [CONTINUE]),
        (_T.PLANNED, _S.REVERSING, [CONTINUE]),
        (_T.PLANNED, _S.ROLLING_BACK, [ROLL_BACK]),
        (_T.PLANNED, _S.DONE, []),
        (_T.PLANNED, _S.LIFTED, []),
        (_T.RESTORE, _S.QUIESCING, ["mirrorflow switchover --restore --to west", ROLL_BACK]),
        (_T.REHEARSAL, _S.SEALED, ["mirrorflow switchover --rehearse --to west", ROLL_BACK]),
        (_T.UNPLANNED, _S.ASSESSING, [CONTINUE_UNPLANNED, ROLL_BACK]),
        (_T.UNPLANNED, _S.FORWARD_ENDED, [CONTINUE_UNPLANNED, ROLL_BACK]),
        (_T.UNPLANNED, _S.GROUPS_CLAMPED, [CONTINUE_UNPLANNED, ROLL_BACK]),
        (_T.UNPLANNED, _S.PROMOTING, [CONTINUE_UNPLANNED]),
        (_T.UNPLANNED, _S.ROLLING_BACK, [ROLL_BACK]),
        (_T.UNPLANNED, _S.DEGRADED, []),
        (_T.UNPLANNED, _S.DONE, []),
        (_T.UNPLANNED, _S.REFUSED, []),
    ],
)
def test_tails_are_not_kept_while_a_switchover_is_unfinished(
    kind: SwitchoverType, state: SwitchoverState, commands: list[str]
):
    """It may still be rolled back, so the old side may get its applications back. Commands that continue it or roll it back are named."""
    record = SwitchoverRecord(
        id="east-west-1", pair="east-west", type=kind, source="east", to="west", created_ms=0, state=state
    )

    if not commands:
        require_none_under_way(record)
        return
    with pytest.raises(TailNotKeptError, match=f"east-west-1 is in state {state.value}") as caught:
        require_none_under_way(record)
    assert commands == re.findall("`([^`]*)`", str(caught.value))


def test_a_tail_with_an_open_transaction_is_refused():
    """An empty tail is accepted, even if a transaction is open before it."""
    opened = DivergedTail(partition=ORDERS, state=TailState.CUT, start=4, end=9, is_open=True)
    empty = DivergedTail(partition=BILLS, state=TailState.CUT, start=9, end=9, is_open=True)

    require_decided(TailSurvey(switchover="east-west-1", tails=(CountedTail(tail=empty),)))
    with pytest.raises(
        TailNotKeptError, match=r"open in orders-0; wait .* If it stays open, .*CompleteAbort"
    ):
        require_decided(TailSurvey(switchover="east-west-1", tails=(CountedTail(tail=opened),)))
