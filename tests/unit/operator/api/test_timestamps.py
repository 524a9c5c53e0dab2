"""A timestamp is accepted only where each reader of it has the same idea of it."""

import pytest

from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.api.timestamps import parse_timestamp, timestamp
from mirrorflow_operator.errors import InvalidSpecError

FLOW = """
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {{name: east-to-west}}
spec:
  source: {{alias: east, bootstrapServers: ["a:1"]}}
  target: {{alias: west, bootstrapServers: ["b:1"]}}
  topics: {{startFrom: {{position: Timestamp, timestamp: "{0}"}}}}
"""


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z"])
def test_a_start_before_1970_is_refused(text: str) -> None:
    """Kafka takes -1 ms as the end of a partition, so all records would be skipped. Go writes the year 1 for no time."""
    with pytest.raises(InvalidSpecError, match="is not a timestamp since 1970 with a time zone"):
        load_flow(FLOW.format(text))


def test_the_start_of_1970_is_accepted() -> None:
    load_flow(FLOW.format("1970-01-01T00:00:00Z"))


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"])
def test_a_time_that_cannot_be_written_is_not_read(text: str) -> None:
    """A pod reports times, which the status has in UTC."""
    assert parse_timestamp(text) is None


def test_the_last_time_that_is_read_can_be_written() -> None:
    last_s = parse_timestamp("9999-12-30T23:59:59Z")

    assert last_s is not None
    assert timestamp(last_s) == "9999-12-30T23:59:59Z"
