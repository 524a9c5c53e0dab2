"""Groups of a lost source are moved on the target by their last checkpoints."""

import uuid
from collections.abc import Callable

from mirrorflow_core.offsets.checkpoints import HAS_MEMBERS
from mirrorflow_replicator.config.checkpoint_properties import parse_checkpoint
from mirrorflow_replicator.switchover.final_groups import FinalGroup, GroupOutcome, clamp_groups
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import call_cluster
from tests.integration.kafka.groups import group_offsets, member, put_group
from tests.integration.kafka.test_checkpoints import Flow, flow  # noqa: F401 - a fixture

DELETED_BEFORE = 50


def test_groups_of_a_lost_source_are_moved_to_offsets_inside_their_copies(
    flow: Flow,  # noqa: F811
    unique_topic: Callable[[], str],
):
    """No group moves back, and no group with members is moved.

    The checkpoint of one group points to records that were deleted since.
    """
    topic, own = flow.source.create_topic(unique_topic()), uuid.uuid4().hex[:8]
    remote = flow.remote(topic)
    behind, inside, ahead, active = (f"{name}-{own}" for name in ("a", "b", "c", "d"))
    load(flow.source, topic, 100)
    with flow.process(topic, groups=f".*-{own}") as process:
        process.wait_for_copy(flow.target, remote, 100)
        for group, offset in ((behind, 10), (inside, 60), (ahead, 60), (active, 60)):
            put_group(flow.source, group, {(topic, 0): offset})
            flow.wait_for_checkpoint(group, offset)
        assert process.stop() == 0
        worker, _, connector = process.files
    assert not isinstance(worker, str)
    assert not isinstance(connector, str)
    at_checkpoint = flow.checkpoints(inside)[-1]["downstream_offset"]
    put_group(flow.target, ahead, {(remote, 0): 90})
    flow.target.delete_records(remote, {0: DELETED_BEFORE})
    consumer = member(flow.target, active, remote, **{"auto.offset.reset": "earliest"})
    wait_until("the member reads", lambda: consumer.poll(0.2), poll_s=0)
    settings = parse_checkpoint(connector, worker)

    placed = call_cluster(flow.target, lambda target: clamp_groups(settings, target))
    placed_again = call_cluster(flow.target, lambda target: clamp_groups(settings, target))
    consumer.close()

    bound = {"outcome": GroupOutcome.BOUND, "repeats_max": None}
    assert placed == (
        FinalGroup(group=behind, **bound),  # type: ignore[arg-type]
        FinalGroup(group=inside, **bound),  # type: ignore[arg-type]
        FinalGroup(group=ahead, **bound),  # type: ignore[arg-type]
        FinalGroup(group=active, outcome=GroupOutcome.REFUSED, repeats_max=None, why=HAS_MEMBERS),
    )
    assert placed_again == placed
    offsets = [group_offsets(flow.target, group) for group in (behind, inside, ahead)]
    assert offsets == [{(remote, 0): DELETED_BEFORE}, {(remote, 0): at_checkpoint}, {(remote, 0): 90}]
    assert DELETED_BEFORE < at_checkpoint <= 60
    assert group_offsets(flow.target, active) == {}
