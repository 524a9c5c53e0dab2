"""Errors can be pickled, because a worker passes them to its task processes."""

import pickle

import pytest

from mirrorflow_core.errors import BrokerError, NotAuthorizedError, TargetUnavailableError


@pytest.mark.parametrize(
    "error",
    [
        NotAuthorizedError(cluster="west", operation="Write", resource="topic orders"),
        TargetUnavailableError(topic="orders", partition=1, problem="no leader"),
        BrokerError(cluster="west", request="Fetch", code=56, name="KAFKA_STORAGE_ERROR", retriable=True),
    ],
    ids=lambda error: error.reason,
)
def test_a_pickled_error_keeps_its_message_and_fields(error):
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
