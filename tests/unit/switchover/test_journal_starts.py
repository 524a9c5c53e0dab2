"""The start offsets that the journal has for a member: a switchover compares only the records after them."""

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


def test_the_starts_for_a_member_are_those_of_switchovers_to_it():
    assert journal(MOVED_TO_WEST).starts_on("west") == (START,)
    assert journal(MOVED_TO_WEST).starts_on("east") == ()


@pytest.mark.parametrize("state", [SwitchoverState.FORWARD_ENDED, SwitchoverState.LIFTED])
def test_a_switchover_that_was_not_promoted_has_no_starts(state: SwitchoverState):
    assert journal(replace(MOVED_TO_WEST, state=state)).starts_on("west") == ()


def test_starts_are_also_read_from_notes():
    noted = {"topic": "orders", "partition": 0, "topic_id": "west-id", "offset": 7}

    assert journal(notes={"starts:west": {"starts": [noted]}}).starts_on("west") == (START,)
