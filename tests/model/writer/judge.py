"""Checks the invariants of a world that has no more work to do."""

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.transaction_log import decided_records
from tests.model.writer.world import CLAIMS, World


def judge(world: World) -> list[str]:
    """The guarantees that this run has violated."""
    violations = list(world.violations)
    for partition in world.data:
        violations += _judge_partition(world, partition)
    for partition in (CLAIMS, *world.positions):
        leader = world.leaders[partition]
        # No process can end the transaction of a producer id that the coordinator has replaced.
        open_ids = decided_records(leader.batches, object).open_records.keys()
        is_known = not open_ids or any(map(world.coordinator.has_producer_id, open_ids))
        if leader.last_stable_offset < leader.log.high_watermark and is_known:
            violations.append(
                f"{partition}: read_committed consumers are stuck at {leader.last_stable_offset}"
            )
    return violations


def _judge_partition(world: World, partition: TopicPartition) -> list[str]:
    leader, source = world.leaders[partition], world.sources[partition]
    violations: list[str] = []
    is_reported = any(
        partition in process.losses or partition in process.problems for process in world.processes
    )
    is_trimmed = any(partition in process.trimmed for process in world.processes)
    if is_reported and not source.truncations and not is_trimmed:
        violations.append(f"{partition}: a loss is reported, but the source has lost nothing")
    if leader.last_stable_offset < leader.log.high_watermark:
        violations.append(f"{partition}: read_committed consumers are stuck at {leader.last_stable_offset}")
    has_transactions = any(batch.is_transactional and not batch.is_control for batch in leader.log.batches)
    for committed in (True, False)[: 2 - has_transactions]:
        numbers = leader.delivered(committed=committed)
        reader = "read_committed" if committed else "read_uncommitted"
        if is_trimmed:
            numbers = sorted(set(numbers))
        # An exception in docs/exactly-once.md: a commit in flight has committed them, not a session.
        revived = {number for id_, number in leader.revived() if (partition, id_) not in world.completed}
        if repeated := sorted({number for number in numbers if numbers.count(number) > 1} - revived):
            violations.append(f"{partition}: {reader} consumers receive {repeated} again")
        elif numbers != sorted(numbers) and not revived:
            violations.append(f"{partition}: {reader} consumers receive records out of order")
        if missing := sorted({record.number for record in source.records} - set(numbers)):
            violations.append(f"{partition}: {reader} consumers do not receive {missing}")
    return violations
