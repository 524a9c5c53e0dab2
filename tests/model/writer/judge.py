"""What must hold when a world has come to rest."""

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.transaction_log import decided_records
from tests.model.writer.world import CLAIMS, World


def judge(world: World) -> list[str]:
    """The promises that this run has broken."""
    found = list(world.violations)
    for partition in world.data:
        found += _judge_partition(world, partition)
    for partition in (CLAIMS, *world.positions):
        leader = world.leaders[partition]
        # No process can end the transaction of a producer id that the coordinator has replaced.
        open_ids = decided_records(leader.batches, object).open_records.keys()
        is_known = not open_ids or any(map(world.coordinator.has_producer_id, open_ids))
        if leader.last_stable_offset < leader.log.high_watermark and is_known:
            found.append(
                f"{partition}: readers of committed records are stuck at {leader.last_stable_offset}"
            )
    return found


def _judge_partition(world: World, partition: TopicPartition) -> list[str]:
    leader, source = world.leaders[partition], world.sources[partition]
    found: list[str] = []
    is_reported = any(partition in one.losses or partition in one.problems for one in world.processes)
    is_trimmed = any(partition in one.trimmed for one in world.processes)
    if is_reported and not source.truncations and not is_trimmed:
        found.append(f"{partition}: a loss is reported, but the source has lost nothing")
    if leader.last_stable_offset < leader.log.high_watermark:
        found.append(f"{partition}: readers of committed records are stuck at {leader.last_stable_offset}")
    has_transactions = any(one.is_transactional and not one.is_control for one in leader.log.batches)
    for committed in (True, False)[: 2 - has_transactions]:
        got = leader.delivered(committed=committed)
        reader = "read_committed" if committed else "read_uncommitted"
        if is_trimmed:
            got = sorted(set(got))
        # An exception in docs/exactly-once.md: no start has committed them, but a commit that was under way has.
        revived = {number for id_, number in leader.revived() if (partition, id_) not in world.completed}
        if twice := sorted({one for one in got if got.count(one) > 1} - revived):
            found.append(f"{partition}: {reader} sees {twice} again")
        elif got != sorted(got) and not revived:
            found.append(f"{partition}: {reader} sees records out of order")
        if missing := sorted({one.number for one in source.records} - set(got)):
            found.append(f"{partition}: {reader} does not see {missing}")
    return found
