"""Altering positions: a new generation, by the settings that its copiers have."""

from mirrorflow_core.settings import TRANSACTION_TIMEOUT_MS
from mirrorflow_replicator.worker.offset_changes import OffsetChanges

CONNECTOR = {
    "name": "flow",
    "connector.class": "MirrorSourceConnector",
    "source.cluster.alias": "east",
    "target.cluster.alias": "west",
    "source.cluster.bootstrap.servers": "east:9092",
    "target.cluster.bootstrap.servers": "west:9092",
}
WORKER = {"bootstrap.servers": "west:9092", "offset.storage.topic": "offsets"}


def test_a_target_that_allows_no_long_transaction_gets_the_short_one_of_its_copiers() -> None:
    """A broker refuses an identity whose time-out is longer than its transaction.max.timeout.ms."""
    short = {"producer.override.transaction.timeout.ms": "7000"}

    assert 7000 == OffsetChanges({**CONNECTOR, **short}, WORKER).transaction_timeout_ms
    assert TRANSACTION_TIMEOUT_MS == OffsetChanges(CONNECTOR, WORKER).transaction_timeout_ms
