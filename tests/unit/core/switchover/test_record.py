import json

import pytest
from hypothesis import given

from mirrorflow_core.switchover.record import (
    HISTORY_MAX,
    StateEntry,
    SwitchoverRecord,
    decode_record,
    encode_record,
    newest_record,
)
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from tests.unit.core.switchover.strategies import RECORDS

RECORD = SwitchoverRecord(
    id="drill", pair="east-west", type=SwitchoverType.PLANNED, source="east", to="west", created_ms=1_000
)


@given(RECORDS)
def test_a_decoded_record_equals_the_encoded_one(record):
    assert decode_record(*encode_record(record)) == record


def test_the_key_names_the_pair_and_the_switchover():
    assert encode_record(RECORD)[0] == b'{"pair":"east-west","switchover":"drill"}'


def test_all_revisions_of_a_record_have_the_same_key():
    moved = RECORD.moved_to(SwitchoverState.CHECKING, 2_000, epoch=1)

    assert encode_record(moved)[0] == encode_record(RECORD)[0]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 2}, "newer version"),
        ({"format": None}, "format is not a whole number"),
        ({"state": "Dancing"}, "Dancing"),
        ({"type": "Sudden"}, "Sudden"),
        ({"limits": []}, "limits is not an object"),
        ({"seal": 3}, "seal is not an object"),
        ({"allows_live_groups": 1}, "allows_live_groups is not a boolean"),
        ({"history": [None]}, "history is not a list of objects"),
        ({"revision": 1.5}, "revision is not a whole number"),
    ],
)
def test_a_damaged_record_is_refused(changes, problem):
    key, value = encode_record(RECORD)

    with pytest.raises(ValueError, match=problem):
        decode_record(key, json.dumps(json.loads(value) | changes).encode())


def test_a_change_of_state_adds_a_revision_and_the_time():
    moved = RECORD.moved_to(SwitchoverState.CHECKING, 2_000, epoch=1)

    assert (moved.revision, moved.entered_ms, moved.epoch) == (1, 2_000, 1)
    assert moved.history == (StateEntry(SwitchoverState.CHECKING, 2_000),)


def test_an_illegal_change_of_state_fails_an_assertion():
    with pytest.raises(AssertionError, match="Accepted became Promoting"):
        RECORD.moved_to(SwitchoverState.PROMOTING, 2_000)


def test_the_history_is_bounded_and_keeps_the_newest_states():
    record = RECORD.moved_to(SwitchoverState.CHECKING, 0)
    for number in range(HISTORY_MAX + 5):
        record = record.moved_to(SwitchoverState.FENCING, number)

    assert len(record.history) == HISTORY_MAX
    assert record.entered_ms == HISTORY_MAX + 4


def test_a_higher_epoch_is_newer_than_a_higher_revision():
    older = RECORD.revised(epoch=1).revised()
    newer = RECORD.revised(id="next", epoch=2)

    assert newest_record([newer, older]) is newer
    assert newest_record([older, older.revised()]) == older.revised()
    assert newest_record([]) is None
