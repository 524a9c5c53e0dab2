"""The check of the flow lock depends on the responses to its transactions."""

import pytest

from mirrorflow_core.writer.broker_requests import NO_RESPONSE, Done, Pause, Producer, Refused, Transaction
from mirrorflow_core.writer.flow_lock import holds_lock

LOCK = Producer("mirrorflow:east:lock", 1, 16)
FENCED, ENDED, LOST, FAILED = Refused(47), Refused(48), Refused(NO_RESPONSE), Refused(-1)


def check(responses: list[Done | Refused]) -> bool:
    """Returns the result of a check that receives exactly *responses*."""
    steps = holds_lock(LOCK)
    (request,) = next(steps)
    while True:
        assert isinstance(request, Transaction | Pause)
        try:
            (request,) = steps.send((responses.pop(0) if isinstance(request, Transaction) else 0,))
        except StopIteration as end:
            return bool(end.value)


@pytest.mark.parametrize(
    ("responses", "is_held"),
    [
        ([Done()], True),
        ([FENCED], False),
        ([ENDED, ENDED, ENDED, Done()], True),  # another process of the group ended the transaction
        ([LOST, Done()], True),
        ([LOST, FENCED], False),
        ([LOST, ENDED, LOST], False),
        ([FAILED, Done()], True),  # UNKNOWN_SERVER_ERROR
        ([FAILED, LOST], False),
    ],
)
def test_the_lock_is_held_only_if_a_check_succeeds(responses: list[Done | Refused], *, is_held: bool) -> None:
    assert check(responses) is is_held
    assert not responses
