"""Targets whose retention has deleted what was copied: a flow continues behind it, whatever its stored offset says."""

from collections.abc import Callable

import pytest

from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import Flow, contents

pytestmark = pytest.mark.more

NEVER = {"offset.flush.interval.ms": "3600000"}


@pytest.mark.parametrize("deleted", [150, 300], ids=["a part", "everything"])
def test_a_copy_that_retention_has_deleted_is_continued(
    flow: Flow, unique_topic: Callable[[], str], deleted: int
):
    """kill -9 before a position; then the target deletes copies, and more comes to the source."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 300)
    with flow.replicator(topic, NEVER) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        flow.target.delete_records(flow.remote(topic), {0: deleted})
        load(flow.source, topic, 100, first=300)
        replicator.start()
        replicator.wait_until_caught_up()

    sent = contents(records(flow.source, topic))
    assert sent[deleted:] == contents(records(flow.target, flow.remote(topic)))
