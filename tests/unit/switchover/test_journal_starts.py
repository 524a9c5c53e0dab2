"""A switchover compares records since the last one has started the flow; the journal says where that was."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.switchover.record import ReverseStart, SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_replicator.switchover.journal import SwitchoverJournal

START = ReverseStart(topic="orders", partition=0, topic_id="west-id", offset=7)
MOVED_TO_WEST = SwitchoverRecord(
    id="east-west-1",
    pair="east-west",
    type=SwitchoverType.PLANNED,
    source="east",
    to="west",
    created_ms=0,
    state=SwitchoverState.DONE,
    reverse_starts=(START,),
)


def journal(*records: SwitchoverRecord, notes: dict[str, Any] | None = None) -> SwitchoverJournal:
    copy: Any = SimpleNamespace(
        alias="east", records={record.id: record for record in records}, notes=notes or {}
    )
    return SwitchoverJournal([copy])


def test_the_starts_are_those_of_switchovers_to_the_member():
    assert journal(MOVED_TO_WEST).starts_on("west") == (START,)
    assert journal(MOVED_TO_WEST).starts_on("east") == ()


@pytest.mark.parametrize("state", [SwitchoverState.FORWARD_ENDED, SwitchoverState.LIFTED])
def test_a_switchover_that_has_not_promoted_has_started_nothing(state: SwitchoverState):
    assert journal(replace(MOVED_TO_WEST, state=state)).starts_on("west") == ()


def test_starts_without_a_record_are_noted():
    noted = {"topic": "orders", "partition": 0, "topic_id": "west-id", "offset": 7}

    assert journal(notes={"starts:west": {"starts": [noted]}}).starts_on("west") == (START,)
