"""What happens to a world between any two of its requests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.broker_requests import (
    NO_RESPONSE,
    InitProducerId,
    ReportLoss,
    Request,
    Transaction,
)
from mirrorflow_core.writer.flow_lock import SPARE_AFTER_MS
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.transaction_log import decided_records
from tests.model.batches import ABORT, COMMIT
from tests.model.coordinator import Marker
from tests.model.writer.partition_logs import ModelLeader, ProducedBatch
from tests.model.writer.process import Process
from tests.model.writer.world import CLAIMS, POSITIONS, TIMESTAMP_TYPE, Until, World

Fault = Callable[[World], None]
HOUR_MS = 3_600_000
AWAY_MAX_MS = 30_000  # far longer than the protocol waits for a marker
_LONG_MS = SPARE_AFTER_MS + 100, 2 * SPARE_AFTER_MS, 4 * SPARE_AFTER_MS


def _alive(world: World) -> list[Any]:
    return [one for one in world.processes if not one.is_dead and not one.is_over]


def _any_leader(world: World) -> tuple[TopicPartition, ModelLeader]:
    partition = world.random.choice([*world.data, *world.data, CLAIMS, *world.positions])
    return partition, world.leaders[partition]


def _data_leader(world: World) -> tuple[TopicPartition, ModelLeader]:
    partition = world.random.choice(world.data)
    return partition, world.leaders[partition]


def newcomer(world: World, *, at_most: int = 5) -> None:
    """Another process that believes the owner to be dead."""
    if len(world.processes) < at_most:
        name = "ABCDEFG"[len(world.processes)]
        Process(world, name, tasks=world.random.choice((1, 2, 2, 3)))


def sleepy_newcomer(world: World) -> None:
    """A newcomer that sleeps between any two of its first requests."""
    if len(world.processes) < 5:
        name = "ABCDEFG"[len(world.processes)]
        one = Process(world, name, tasks=world.random.choice((1, 1, 2, 3)))
        one.sleep_after(world.random.randint(1, 45))


def newcomer_with_one_task(world: World) -> None:
    """A newcomer with fewer tasks than the owner."""
    if len(world.processes) < 5:
        Process(world, "ABCDEFG"[len(world.processes)], tasks=1)


def dying_newcomer(world: World) -> None:
    """A newcomer with fewer tasks than the owner that dies during its takeover."""
    if len(world.processes) < 5:
        one = Process(world, "ABCDEFG"[len(world.processes)], tasks=1)
        one.die_after(world.random.randint(8, 30))


def raise_ids(world: World) -> None:
    """A process that has slept since it took the lock initializes an id of the present owner."""
    names = [one for one in sorted(world.names) if not one.endswith("lock")]
    if names:
        world.init_producer_id(world.random.choice(names))


def hold_bytes(world: World) -> None:
    """What is on its way to a leader, or to a partition's log as a marker, is held for long."""
    world.slow_markers_until = world.steps + 200
    for connection in world.connections:
        if connection.actor is not None and not connection.actor.is_over and world.random.random() < 0.5:
            world.slow_down(connection.actor)


def freeze_owner(world: World) -> None:
    """SIGSTOP of the owner, for long; what it has sent is held on its way."""
    for process in _alive(world):
        if process.is_owner:
            process.frozen_until = world.steps + world.random.choice((100, 300, 800))
            for connection in world.connections:
                if connection.process is process and connection.actor is not None:
                    world.slow_down(connection.actor)


def waiting_newcomer(world: World) -> None:
    """Another process that waits for its turn; one, for of two that wait for the same end the later one fences the first."""
    if len(world.processes) < 2:
        Process(world, "ABCDEFG"[len(world.processes)], tasks=world.random.choice((1, 2)), waits=True)


def kill(world: World) -> None:
    """kill -9. What it has sent may arrive later, or never."""
    if alive := _alive(world):
        _kill(world, world.random.choice(alive))


def _kill(world: World, victim: Any) -> None:
    victim.is_dead = True
    for connection in world.connections:
        connection.is_cut |= connection.process is victim
    world.events.append(f"{world.steps} {victim.name} dies")
    for actor in [one for one in world.actors if one.process is victim]:
        world.busy -= {one for one in world.busy if one[0] is victim}
        world.abandon(actor)


def freeze(world: World) -> None:
    """SIGSTOP, for some time."""
    if alive := _alive(world):
        victim = world.random.choice(alive)
        victim.frozen_until = world.steps + world.random.choice((20, 100, 300, 800))
        world.events.append(f"{world.steps} {victim.name} sleeps until {victim.frozen_until}")


def stop(world: World) -> None:
    """SIGTERM."""
    if alive := _alive(world):
        world.random.choice(alive).is_stopping = True


def elect(world: World) -> None:
    """A clean election: what is not replicated may go."""
    partition, leader = _any_leader(world)
    if leader.is_online:
        end = world.random.choice((leader.log.high_watermark, leader.log.end))
        is_restarted, is_same_broker = world.random.random() < 0.3, world.random.random() < 0.5
        world.elect(partition, end, is_restarted=is_restarted, is_same_broker=is_same_broker)
        world.events.append(f"{world.steps} {partition} elects at {end}")


def elect_uncleanly(world: World) -> None:
    """A data partition of the target loses its tail."""
    partition, leader = _data_leader(world)
    if leader.is_online:
        end = world.random.randint(max(leader.log.start, leader.log.end - 15), leader.log.end)
        world.elect(partition, end)
        world.events.append(f"{world.steps} {partition} elects uncleanly at {end}")


def lag(world: World) -> None:
    """Followers do not fetch for a while."""
    partition, leader = _any_leader(world)
    leader.replicates = False
    world.spawn(f"followers of {partition}", _replicate(world, leader))


def _replicate(world: World, leader: ModelLeader) -> Any:
    yield Until(deadline_ms=world.now_ms + world.random.choice((5, 30, 100)))
    leader.replicates = True
    leader.replicate()


def stay_behind(world: World) -> None:
    """The followers of a partition do not fetch for longer than a task waits for the end of its transaction."""
    _stay_behind(world, _data_leader(world)[1])


def stay_behind_anywhere(world: World) -> None:
    """As `stay_behind`, also partitions of internal topics."""
    _stay_behind(world, _any_leader(world)[1])


def _stay_behind(world: World, leader: ModelLeader) -> None:
    leader.replicates = False
    world.spawn("followers", _catch_up(world, leader))


def _catch_up(world: World, leader: ModelLeader) -> Any:
    yield Until(deadline_ms=world.now_ms + world.random.choice(_LONG_MS))
    leader.replicates = True
    leader.replicate()


def restart_idle(world: World) -> None:
    """kill -9 of an owner whose stored positions have all that was copied; the target may be emptied before the next start."""
    records = decided_records(world.leaders[POSITIONS].batches, WriterPosition).committed
    stored = {one.topic_partition: one for one in records}
    for process in _alive(world):
        if process.is_owner and len(world.processes) < 7 and all(map(_is_settled(world, stored), world.data)):
            _kill(world, process)
            if world.random.random() < 0.5:
                delete_all_records(world)
            newcomer(world, at_most=7)


def _is_settled(
    world: World, stored: Mapping[TopicPartition, WriterPosition]
) -> Callable[[TopicPartition], bool]:
    """Whether a partition's position has all of the source, and no start of its task is under way."""

    def holds(partition: TopicPartition) -> bool:
        position = stored.get(partition)
        if position is None or position.writer is None:
            return False
        plain = world.coordinator.known(position.writer.plain)
        is_newest = plain is not None and plain.epoch == position.producer_epoch
        return is_newest and position.next_source_offset == world.sources[partition].end

    return holds


def delete_all_records(world: World) -> None:
    """DeleteRecords, or retention, of all data partitions of the target."""
    for partition in world.data:
        leader = world.leaders[partition]
        if leader.is_online:
            leader.delete_before(leader.log.end)
            world.events.append(f"{world.steps} {partition} begins at {leader.log.start}")


def lose_positions(world: World) -> None:
    """All records of the offsets topic are deleted; the tasks notice it.

    Once: with them a commit is forgotten whose response has not come, and whose position came between two of such losses.
    """
    if world.position_losses:
        return
    for partition in world.positions:
        leader = world.leaders[partition]
        if leader.is_online:
            leader.delete_before(leader.log.end)
    world.position_losses += 1


def lack_replicas(world: World) -> None:
    """The ISR is below min.insync.replicas for a few requests, or falls below it while they wait."""
    _, leader = _data_leader(world)
    leader.loses_replicas = world.random.random() < 0.3
    leader.lacks_replicas = not leader.loses_replicas
    world.spawn("isr", _regain(world, leader))


def _regain(world: World, leader: ModelLeader) -> Any:
    yield Until(deadline_ms=world.now_ms + world.random.choice((1, 3, 10)))
    leader.lacks_replicas = leader.loses_replicas = False


def go_offline(world: World, durations_ms: tuple[int, ...] = (20, 100, 300)) -> None:
    """A partition has no leader for a while; it returns with its whole log."""
    _go_offline(world, _data_leader(world)[0], durations_ms)


def go_offline_anywhere(world: World) -> None:
    """As `go_offline`, also partitions of internal topics."""
    _go_offline(world, _any_leader(world)[0], (20, 100, 300))


def stay_offline_anywhere(world: World) -> None:
    """As `stay_offline`, also partitions of internal topics."""
    _go_offline(world, _any_leader(world)[0], _LONG_MS)


def _go_offline(world: World, partition: TopicPartition, durations_ms: tuple[int, ...]) -> None:
    leader = world.leaders[partition]
    if leader.is_online:
        leader.is_online = False
        world.events.append(f"{world.steps} {partition} has no leader")
        world.spawn(f"broker of {partition}", _return(world, partition, world.random.choice(durations_ms)))


def stay_offline(world: World) -> None:
    """A partition has no leader for longer than a task waits for the end of its transaction."""
    go_offline(world, _LONG_MS)


def _return(world: World, partition: TopicPartition, duration_ms: int) -> Any:
    yield Until(deadline_ms=world.now_ms + duration_ms)
    bring_back(world, partition)


def bring_back(world: World, partition: TopicPartition) -> None:
    leader = world.leaders[partition]
    if not leader.is_online:
        leader.is_online = True
        world.elect(partition, leader.log.high_watermark, is_restarted=True, is_same_broker=True)


def change_timestamp_type(world: World) -> None:
    """The target's topic sets timestamps from now on, or no longer does."""
    for partition in world.data:
        configs = world.leaders[partition].configs
        is_stamped = configs.get(TIMESTAMP_TYPE) == "LogAppendTime"
        world.leaders[partition].configs = {TIMESTAMP_TYPE: "CreateTime" if is_stamped else "LogAppendTime"}


def restart(world: World) -> None:
    """kill -9 of the owner, and its next process at once."""
    for process in _alive(world):
        if process.is_owner and len(world.processes) < 6:
            _kill(world, process)
            Process(world, "ABCDEFG"[len(world.processes)], tasks=world.random.choice((1, 2)))
            return


def deny(world: World) -> None:
    """Write on the topic of a partition is denied until the others are copied."""
    if partition := _away(world):
        world.denied.add(partition)
        _return_later(world, partition, lambda: world.denied.discard(partition))


def lose_leader(world: World) -> None:
    """A partition of the target has no leader until the others are copied."""
    if partition := _away(world):
        world.leaders[partition].is_online = False
        _return_later(world, partition, lambda: bring_back(world, partition))


def lose_source_leader(world: World) -> None:
    """A partition of the source has no leader until the others are copied."""
    if partition := _away(world):
        source = world.sources[partition]
        source.is_online = False
        _return_later(world, partition, lambda: setattr(source, "is_online", True))


def _away(world: World) -> TopicPartition | None:
    """A partition that is available; None if another one is away already."""
    if world.away:
        return None
    partition = world.random.choice(world.data)
    world.away.add(partition)
    append_to_source(world)
    return partition


def _return_later(world: World, partition: TopicPartition, end: Callable[[], None]) -> None:
    world.events.append(f"{world.steps} {partition} is away")
    world.spawn(f"return of {partition}", _return_when_others_are_copied(world, partition, end))


def _return_when_others_are_copied(world: World, partition: TopicPartition, end: Callable[[], None]) -> Any:
    yield Until(
        lambda: world.is_settling or world.is_copied_but(world.away), deadline_ms=world.now_ms + AWAY_MAX_MS
    )
    if not world.is_settling and not world.is_copied_but(world.away) and _alive(world):
        world.violations.append(f"the other partitions waited for {partition}")
    end()
    world.away.discard(partition)
    world.events.append(f"{world.steps} {partition} is back")


def expire_producers(world: World) -> None:
    """Leaders forget producers by the timestamps of their records (every ten minutes)."""
    for leader in world.leaders.values():
        leader.expire(world.now_ms, world.options.producer_expiration_ms)


def pass_hours(world: World) -> None:
    """No process is scheduled for hours; leaders forget, and idle connections are closed."""
    world.now_ms += world.random.choice((1, 6, 13, 23, 25)) * HOUR_MS
    world.coordinator.abort_timed_out(world.now_ms)
    expire_producers(world)


def pass_seconds(world: World) -> None:
    """Some seconds pass, and leaders look for producers to forget."""
    world.now_ms += world.random.choice((1_000, 2_000, 4_000))
    expire_producers(world)


def grow_positions(world: World) -> None:
    """The offsets topic gets another partition. Keys move, and some return to one in which they were before."""
    if len(world.positions) < 4:
        world.add_positions_partition()


def step_clock(world: World) -> None:
    """The wall clock of a process is set; its monotonic clock is not."""
    if alive := _alive(world):
        one = world.random.choice(alive)
        one.clock_ms = world.random.choice((-HOUR_MS, -20_000, 20_000, HOUR_MS))
        world.events.append(f"{world.steps} the clock of {one.name} is {one.clock_ms} ms ahead")


def time_out_transactions(world: World) -> None:
    """Open transactions have reached transaction.timeout.ms."""
    world.now_ms += 61_000
    world.coordinator.abort_timed_out(world.now_ms)


def forget_ids(world: World) -> None:
    """transactional.id.expiration.ms was lowered: the coordinator forgets ids that are not in use."""
    kept, world.coordinator.expiration_ms = world.coordinator.expiration_ms, 10
    world.coordinator.expire(world.now_ms)
    world.coordinator.expiration_ms = kept


def compact(world: World) -> None:
    """The cleaner has run over the internal topics and, up to some offset, over data."""
    for partition, leader in world.leaders.items():
        is_internal = partition in {CLAIMS, *world.positions}
        leader.compact(leader.log.end if is_internal else world.random.randint(0, max(0, leader.log.end - 3)))


def cut_connections(world: World) -> None:
    """Connections break: answers are lost, bytes may still arrive."""
    for connection in world.connections:
        if not connection.is_cut and world.random.random() < 0.7:
            connection.is_cut = True
            if connection.actor is not None and world.random.random() < 0.5:
                world.slow_down(connection.actor)
            for _, receive in connection.queue:
                receive(NO_RESPONSE)


def stop_without_connections(world: World) -> None:
    """SIGTERM just when connections break; what was sent is held on its way."""
    cut_connections(world)
    stop(world)


def forget_a_frozen_owner(world: World) -> None:
    """The owner sleeps for long, the coordinator forgets its ids, and a newcomer takes the flow."""
    for process in _alive(world):
        if process.is_owner and len(world.processes) < 4:
            process.frozen_until = world.steps + world.random.choice((2500, 4000))
            for connection in world.connections:
                if connection.process is process and not connection.is_cut:
                    connection.is_cut = True
                    for _, receive in connection.queue:
                        receive(NO_RESPONSE)
            forget_ids(world)
            newcomer(world)
            return


def write_foreign(world: World) -> None:
    """Another program writes to the target topic."""
    partition, _ = _data_leader(world)
    producer_id = 10_000 + world.steps
    world.foreign.add((producer_id, 0))
    world.append(partition, ProducedBatch(producer_id, 0, 0, world.now_ms, False, (-1, -1)))


def impersonate(world: World) -> None:
    """A producer that moved here from another cluster has our producer id, its own low epoch, and our next sequence."""
    partition, leader = _data_leader(world)
    entries = list(leader.producers.producers.values())
    if entries and leader.is_online:
        entry = world.random.choice(entries)
        for epoch in (0, 1, 2):
            key = entry.producer_id, epoch
            if epoch == entry.epoch:
                world.foreign.add(key)
            batch = ProducedBatch(*key, entry.last_sequence + 1, world.now_ms, False, (-2,) * 5)
            world.append(partition, batch)


def truncate_source(world: World) -> None:
    """An unclean election at the source: the tail is replaced by other records."""
    source = world.sources[world.random.choice(world.data)]
    source.elect(world.random.randint(max(0, source.end - 12), source.end))
    source.append(world.random.randint(1, 20), world.now_ms - 1000)
    _note(world)


def elect_earlier_source(world: World) -> None:
    """An unclean election at the source: a former leader returns, with records of its epoch that were never replicated."""
    source = world.sources[world.random.choice(world.data)]
    source.elect_earlier(world.random.randint(1, 8), world.now_ms - 1000)
    source.append(world.random.randint(1, 10), world.now_ms - 1000)
    _note(world)


def lose_marker(world: World) -> None:
    """The next commit marker finds no leader in one partition, while another one of the transaction stays behind."""
    stay_behind(world)
    lose_data_marker(world)


def lose_data_marker(world: World) -> None:
    """The next commit marker finds no leader in a data partition."""
    _lose_marker(world, world.data, {COMMIT})


def lose_internal_marker(world: World) -> None:
    """The next marker finds no leader in a partition of an internal topic."""
    lost = world.random.choice((CLAIMS, POSITIONS, POSITIONS))
    _lose_marker(world, [lost], world.random.choice(({COMMIT}, {COMMIT}, {COMMIT, ABORT}, {ABORT})))


def lose_marker_and_die(world: World) -> None:
    """As `lose_internal_marker`; the process that writes then is killed some requests later."""
    lose_internal_marker(world)
    for process in _alive(world):
        if process.is_owner and world.random.random() < 0.7:
            process.die_after(world.random.randint(5, 60))


def _lose_marker(world: World, partitions: Sequence[TopicPartition], kinds: set[int]) -> None:
    def go_offline_before(partition: TopicPartition, marker: Marker) -> None:
        leader = world.leaders[partition]
        if partition in partitions and marker.kind in kinds and leader.is_writable:
            world.before_marker, leader.is_online = None, False
            world.events.append(f"{world.steps} {partition} loses a marker of {marker.producer_id}")
            world.spawn(f"broker of {partition}", _return(world, partition, 20))

    world.before_marker = go_offline_before


def go_offline_while_healing(world: World, request: Request) -> None:
    """A partition has no leader again when the marker is written that it lacks."""
    if isinstance(request, Transaction) and request.commit and request.partitions and world.faults_left > 0:
        world.faults_left -= 1
        partition = world.random.choice(request.partitions)
        if world.leaders[partition].is_online:
            world.leaders[partition].is_online = False
            world.spawn(f"broker of {partition}", _return(world, partition, 20))


def interrupt_healing(world: World, request: Request) -> None:
    """The commit that writes a missing marker is lost on its way, and followers delay the marker of its abort."""
    if isinstance(request, Transaction) and request.commit and request.partitions and world.faults_left > 0:
        world.faults_left -= 1
        world.lost_next.add("EndTxn")
        leader = world.leaders[world.random.choice(request.partitions)]
        leader.replicates = False
        world.spawn("followers", _catch_up(world, leader))


def lose_healing(world: World, request: Request) -> None:
    """The commit that writes a missing marker is lost on its way, so it becomes an abort."""
    if isinstance(request, Transaction) and request.commit and request.partitions and world.faults_left > 0:
        world.faults_left -= 1
        world.lost_next.add("EndTxn")


def elect_behind_spares(world: World, request: Request) -> None:
    """As `interrupt_healing`; and all data partitions lose markers just when a spare id stores positions behind them."""
    interrupt_healing(world, request)
    if not isinstance(request, Transaction) or not request.producer.transactional_id.endswith("-spare"):
        return
    if request.positions and world.faults_left > 0:
        world.faults_left -= 1
        for partition in world.data:
            _elect_before_a_marker(world, partition)


def undo_healing(world: World, request: Request) -> None:
    """The commit that writes a missing marker loses that marker, too, or is lost itself."""
    world.random.choice((go_offline_while_healing, interrupt_healing))(world, request)


def rewrite_source_again(world: World, request: Request) -> None:
    """The source is rewritten once more when a loss is found, before anything is fetched behind it."""
    if isinstance(request, ReportLoss) and world.faults_left > 0:
        world.faults_left -= 1
        source = world.sources[request.partition]
        source.elect(max(0, request.next_source_offset - world.random.randint(1, 5)))
        source.append(world.random.randint(1, 20), world.now_ms - 1000)
        _note(world)


def return_before_spares(world: World, request: Request) -> None:
    """Partitions have leaders again just before a task takes its spare id."""
    if isinstance(request, InitProducerId) and request.transactional_id.endswith("-spare"):
        for partition in world.data:
            bring_back(world, partition)


def hold_markers(world: World) -> None:
    """Markers are long on their way."""
    world.slow_markers_until = world.steps + 1000


def elect_before_a_marker(world: World) -> None:
    """A data partition of the target loses its last commit marker, and what follows, in an unclean election."""
    _elect_before_a_marker(world, _data_leader(world)[0])


def _elect_before_a_marker(world: World, partition: TopicPartition) -> None:
    leader = world.leaders[partition]
    ends = [one.base_offset for one in leader.log.batches if one.marker == COMMIT]
    if ends and leader.is_online:
        world.elect(partition, ends[-1])
        world.events.append(f"{world.steps} {partition} elects before a marker at {ends[-1]}")


def elect_source(world: World) -> None:
    """A clean election at the source; new records have another leader epoch."""
    source = world.sources[world.random.choice(world.data)]
    source.elect(source.end)
    source.append(world.random.randint(1, 10), world.now_ms - 1000)
    _note(world)


def compact_source(world: World) -> None:
    """The source's cleaner removes records."""
    world.sources[world.random.choice(world.data)].compact(world.random)


def append_to_source(world: World) -> None:
    """New records, fresh or, where the world has old ones, old."""
    for source in world.sources.values():
        is_old = world.random.random() < world.options.old_share
        source.append(world.random.randint(1, 12), world.now_ms - (3 * 24 * HOUR_MS if is_old else 1000))
    _note(world)


def slow_down_target(world: World) -> None:
    """The target needs up to four times as long for each record from now on, or as long as at first."""
    world.record_ms = world.options.record_ms * world.random.choice((1, 2, 4))


def limit_batches(world: World) -> None:
    """The target takes smaller batches from now on (max.message.bytes after recompression)."""
    _, leader = _data_leader(world)
    leader.max_records = world.random.choice((1, 2, 3))


def _note(world: World) -> None:
    for partition, source in world.sources.items():
        for record in source.records:
            world.source_offsets[partition, record.number] = record.offset
