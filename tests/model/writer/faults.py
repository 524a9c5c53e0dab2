"""Faults that are injected between any two requests of a world."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.broker_requests import (
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
from tests.model.writer.process import Ender, Process
from tests.model.writer.world import CLAIMS, NO_RESPONSE, POSITIONS, TIMESTAMP_TYPE, Until, World

Fault = Callable[[World], None]
HOUR_MS = 3_600_000
AWAY_MAX_MS = 30_000  # much longer than the protocol waits for a marker
_LONG_MS = SPARE_AFTER_MS + 100, 2 * SPARE_AFTER_MS, 4 * SPARE_AFTER_MS


def _alive_processes(world: World) -> list[Any]:
    return [process for process in world.processes if not process.is_dead and not process.is_over]


def _any_leader(world: World) -> tuple[TopicPartition, ModelLeader]:
    partition = world.random.choice([*world.data, *world.data, CLAIMS, *world.positions])
    return partition, world.leaders[partition]


def _data_leader(world: World) -> tuple[TopicPartition, ModelLeader]:
    partition = world.random.choice(world.data)
    return partition, world.leaders[partition]


def newcomer(world: World, *, at_most: int = 5) -> None:
    """Starts a process that assumes that the owner is dead."""
    if len(world.processes) < at_most:
        name = "ABCDEFG"[len(world.processes)]
        Process(world, name, tasks=world.random.choice((1, 2, 2, 3)))


def sleepy_newcomer(world: World) -> None:
    """Starts a newcomer that sleeps between any two of its first requests."""
    if len(world.processes) < 5:
        name = "ABCDEFG"[len(world.processes)]
        process = Process(world, name, tasks=world.random.choice((1, 1, 2, 3)))
        process.sleep_after(world.random.randint(1, 45))


def newcomer_with_one_task(world: World) -> None:
    """Starts a newcomer with fewer tasks than the owner."""
    if len(world.processes) < 5:
        Process(world, "ABCDEFG"[len(world.processes)], tasks=1)


def dying_newcomer(world: World) -> None:
    """Starts a newcomer with fewer tasks than the owner, which dies during its takeover."""
    if len(world.processes) < 5:
        process = Process(world, "ABCDEFG"[len(world.processes)], tasks=1)
        process.die_after(world.random.randint(8, 30))


def end_flow(world: World) -> None:
    """Starts a switchover that ends the flow, and clears the end later."""
    if len(world.processes) < 6 and not any(
        isinstance(process, Ender) for process in _alive_processes(world)
    ):
        Ender(world, f"ender {len(world.processes)}")


def raise_ids(world: World) -> None:
    """Initializes an id of the owner, as a process does that was suspended after it took the lock."""
    names = [name for name in sorted(world.names) if not name.endswith("lock")]
    if names:
        world.init_producer_id(world.random.choice(names))


def hold_bytes(world: World) -> None:
    """Delays requests to leaders and markers to partitions for a long time."""
    world.slow_markers_until = world.steps + 200
    for connection in world.connections:
        if connection.actor is not None and not connection.actor.is_over and world.random.random() < 0.5:
            world.slow_down(connection.actor)


def freeze_owner(world: World) -> None:
    """Stops the owner with SIGSTOP for a long time and delays what it has sent."""
    for process in _alive_processes(world):
        if process.is_owner:
            process.frozen_until = world.steps + world.random.choice((100, 300, 800))
            for connection in world.connections:
                if connection.process is process and connection.actor is not None:
                    world.slow_down(connection.actor)


def waiting_newcomer(world: World) -> None:
    """Starts a process that waits for its turn. Only one: of two that wait, the later one fences the first."""
    if len(world.processes) < 2:
        Process(world, "ABCDEFG"[len(world.processes)], tasks=world.random.choice((1, 2)), waits=True)


def kill(world: World) -> None:
    """Kills a process with SIGKILL. What it has sent may arrive later, or never."""
    if alive := _alive_processes(world):
        _kill(world, world.random.choice(alive))


def _kill(world: World, victim: Any) -> None:
    victim.is_dead = True
    for connection in world.connections:
        connection.is_cut |= connection.process is victim
    world.events.append(f"{world.steps} {victim.name} dies")
    for actor in [actor for actor in world.actors if actor.process is victim]:
        world.busy -= {key for key in world.busy if key[0] is victim}
        world.abandon(actor)


def freeze(world: World) -> None:
    """Stops a process with SIGSTOP for some time."""
    if alive := _alive_processes(world):
        victim = world.random.choice(alive)
        victim.frozen_until = world.steps + world.random.choice((20, 100, 300, 800))
        world.events.append(f"{world.steps} {victim.name} sleeps until {victim.frozen_until}")


def stop(world: World) -> None:
    """Stops a process with SIGTERM."""
    if alive := _alive_processes(world):
        world.random.choice(alive).is_stopping = True


def elect(world: World) -> None:
    """Elects a leader from the in-sync replicas; records that are not replicated may be lost."""
    partition, leader = _any_leader(world)
    if leader.is_online:
        end = world.random.choice((leader.log.high_watermark, leader.log.end))
        is_restarted, is_same_broker = world.random.random() < 0.3, world.random.random() < 0.5
        world.elect(partition, end, is_restarted=is_restarted, is_same_broker=is_same_broker)
        world.events.append(f"{world.steps} {partition} elects at {end}")


def elect_uncleanly(world: World) -> None:
    """Elects a leader uncleanly, so that a data partition of the target loses its tail."""
    partition, leader = _data_leader(world)
    if leader.is_online:
        end = world.random.randint(max(leader.log.start, leader.log.end - 15), leader.log.end)
        world.elect(partition, end)
        world.events.append(f"{world.steps} {partition} elects uncleanly at {end}")


def lag(world: World) -> None:
    """Stops the followers of a partition from fetching for a while."""
    partition, leader = _any_leader(world)
    leader.replicates = False
    world.spawn(f"followers of {partition}", _replicate(world, leader))


def _replicate(world: World, leader: ModelLeader) -> Any:
    yield Until(deadline_ms=world.now_ms + world.random.choice((5, 30, 100)))
    leader.replicates = True
    leader.replicate()


def stop_followers(world: World) -> None:
    """Stops followers from fetching for longer than a task waits for the end of its transaction."""
    _stop_followers(world, _data_leader(world)[1])


def stop_followers_anywhere(world: World) -> None:
    """As `stop_followers`, but also for partitions of internal topics."""
    _stop_followers(world, _any_leader(world)[1])


def _stop_followers(world: World, leader: ModelLeader) -> None:
    leader.replicates = False
    world.spawn("followers", _catch_up(world, leader))


def _catch_up(world: World, leader: ModelLeader) -> Any:
    yield Until(deadline_ms=world.now_ms + world.random.choice(_LONG_MS))
    leader.replicates = True
    leader.replicate()


def restart_idle(world: World) -> None:
    """Kills an owner whose stored positions cover all copied records; may empty the target before the next start."""
    records = decided_records(world.leaders[POSITIONS].batches, WriterPosition).committed
    stored = {position.topic_partition: position for position in records}
    for process in _alive_processes(world):
        if process.is_owner and len(world.processes) < 7 and all(map(_is_settled(world, stored), world.data)):
            _kill(world, process)
            if world.random.random() < 0.5:
                delete_all_records(world)
            newcomer(world, at_most=7)


def _is_settled(
    world: World, stored: Mapping[TopicPartition, WriterPosition]
) -> Callable[[TopicPartition], bool]:
    """Returns whether a partition's position covers the whole source and no session of its task is starting."""

    def is_settled(partition: TopicPartition) -> bool:
        position = stored.get(partition)
        if position is None or position.writer is None:
            return False
        plain = world.coordinator.metadata_of(position.writer.plain)
        is_newest = plain is not None and plain.epoch == position.producer_epoch
        return is_newest and position.next_source_offset == world.sources[partition].end

    return is_settled


def delete_all_records(world: World) -> None:
    """Deletes all records of the target's data partitions, as DeleteRecords and retention do."""
    for partition in world.data:
        leader = world.leaders[partition]
        if leader.is_online:
            leader.delete_before(leader.log.end)
            world.events.append(f"{world.steps} {partition} begins at {leader.log.start}")


def lose_positions(world: World) -> None:
    """Deletes all records of the offsets topic, which the tasks detect.

    This happens once: two losses could remove both a position and the only trace of a commit without a response.
    """
    if world.position_losses:
        return
    for partition in world.positions:
        leader = world.leaders[partition]
        if leader.is_online:
            leader.delete_before(leader.log.end)
    world.position_losses += 1


def lack_replicas(world: World) -> None:
    """Shrinks the ISR below min.insync.replicas before a few requests, or while they wait."""
    _, leader = _data_leader(world)
    leader.loses_replicas = world.random.random() < 0.3
    leader.lacks_replicas = not leader.loses_replicas
    world.spawn("isr", _regain(world, leader))


def _regain(world: World, leader: ModelLeader) -> Any:
    yield Until(deadline_ms=world.now_ms + world.random.choice((1, 3, 10)))
    leader.lacks_replicas = leader.loses_replicas = False


def go_offline(world: World, durations_ms: tuple[int, ...] = (20, 100, 300)) -> None:
    """Takes the leader of a partition away for a while; it returns with its whole log."""
    _go_offline(world, _data_leader(world)[0], durations_ms)


def go_offline_anywhere(world: World) -> None:
    """As `go_offline`, but also for partitions of internal topics."""
    _go_offline(world, _any_leader(world)[0], (20, 100, 300))


def stay_offline_anywhere(world: World) -> None:
    """As `stay_offline`, but also for partitions of internal topics."""
    _go_offline(world, _any_leader(world)[0], _LONG_MS)


def _go_offline(world: World, partition: TopicPartition, durations_ms: tuple[int, ...]) -> None:
    leader = world.leaders[partition]
    if leader.is_online:
        leader.is_online = False
        world.events.append(f"{world.steps} {partition} has no leader")
        world.spawn(f"broker of {partition}", _return(world, partition, world.random.choice(durations_ms)))


def stay_offline(world: World) -> None:
    """Takes a leader away for longer than a task waits for the end of its transaction."""
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
    """Toggles message.timestamp.type of the target's topic."""
    for partition in world.data:
        configs = world.leaders[partition].configs
        is_stamped = configs.get(TIMESTAMP_TYPE) == "LogAppendTime"
        world.leaders[partition].configs = {TIMESTAMP_TYPE: "CreateTime" if is_stamped else "LogAppendTime"}


def restart(world: World) -> None:
    """Kills the owner and starts its next process at once."""
    for process in _alive_processes(world):
        if process.is_owner and len(world.processes) < 6:
            _kill(world, process)
            Process(world, "ABCDEFG"[len(world.processes)], tasks=world.random.choice((1, 2)))
            return


def deny(world: World) -> None:
    """Denies writes to the topic of a partition until the others are copied."""
    if partition := _next_unavailable(world):
        world.denied.add(partition)
        _return_later(world, partition, lambda: world.denied.discard(partition))


def lose_leader(world: World) -> None:
    """Takes the leader of a target partition away until the others are copied."""
    if partition := _next_unavailable(world):
        world.leaders[partition].is_online = False
        _return_later(world, partition, lambda: bring_back(world, partition))


def lose_source_leader(world: World) -> None:
    """Takes the leader of a source partition away until the others are copied."""
    if partition := _next_unavailable(world):
        source = world.sources[partition]
        source.is_online = False
        _return_later(world, partition, lambda: setattr(source, "is_online", True))


def _next_unavailable(world: World) -> TopicPartition | None:
    """Marks a partition as unavailable and returns it; None if there is an unavailable one already."""
    if world.unavailable:
        return None
    partition = world.random.choice(world.data)
    world.unavailable.add(partition)
    append_to_source(world)
    return partition


def _return_later(world: World, partition: TopicPartition, end: Callable[[], None]) -> None:
    world.events.append(f"{world.steps} {partition} is unavailable")
    world.spawn(f"return of {partition}", _return_when_others_are_copied(world, partition, end))


def _return_when_others_are_copied(world: World, partition: TopicPartition, end: Callable[[], None]) -> Any:
    yield Until(
        lambda: world.is_settling or world.is_copied_except(world.unavailable),
        deadline_ms=world.now_ms + AWAY_MAX_MS,
    )
    if not world.is_settling and not world.is_copied_except(world.unavailable) and _alive_processes(world):
        world.violations.append(f"the other partitions waited for {partition}")
    end()
    world.unavailable.discard(partition)
    world.events.append(f"{world.steps} {partition} is available again")


def expire_producers(world: World) -> None:
    """Expires producers by the timestamps of their records, as leaders do every ten minutes."""
    for leader in world.leaders.values():
        leader.expire(world.now_ms, world.options.producer_expiration_ms)


def pass_hours(world: World) -> None:
    """Lets hours pass without scheduling a process; producers expire and idle connections are closed."""
    world.now_ms += world.random.choice((1, 6, 13, 23, 25)) * HOUR_MS
    world.coordinator.abort_timed_out(world.now_ms)
    expire_producers(world)


def pass_seconds(world: World) -> None:
    """Lets seconds pass, and expires producers."""
    world.now_ms += world.random.choice((1_000, 2_000, 4_000))
    expire_producers(world)


def grow_positions(world: World) -> None:
    """Adds a partition to the offsets topic. Keys move, and some move back."""
    if len(world.positions) < 4:
        world.add_positions_partition()


def step_clock(world: World) -> None:
    """Sets the wall clock of a process, but not its monotonic clock."""
    if alive := _alive_processes(world):
        process = world.random.choice(alive)
        process.clock_ms = world.random.choice((-HOUR_MS, -20_000, 20_000, HOUR_MS))
        world.events.append(f"{world.steps} the clock of {process.name} is {process.clock_ms} ms ahead")


def time_out_transactions(world: World) -> None:
    """Lets open transactions exceed transaction.timeout.ms."""
    world.now_ms += 61_000
    world.coordinator.abort_timed_out(world.now_ms)


def forget_ids(world: World) -> None:
    """Lowers transactional.id.expiration.ms briefly, so that the coordinator removes unused ids."""
    kept, world.coordinator.expiration_ms = world.coordinator.expiration_ms, 10
    world.coordinator.expire(world.now_ms)
    world.coordinator.expiration_ms = kept


def compact(world: World) -> None:
    """Compacts the internal topics and, up to a random offset, the data partitions."""
    for partition, leader in world.leaders.items():
        is_internal = partition in {CLAIMS, *world.positions}
        leader.compact(leader.log.end if is_internal else world.random.randint(0, max(0, leader.log.end - 3)))


def cut_connections(world: World) -> None:
    """Breaks connections: responses are lost, but sent bytes may still arrive."""
    for connection in world.connections:
        if not connection.is_cut and world.random.random() < 0.7:
            connection.is_cut = True
            if connection.actor is not None and world.random.random() < 0.5:
                world.slow_down(connection.actor)
            for _, receive in connection.queue:
                receive(NO_RESPONSE)


def stop_without_connections(world: World) -> None:
    """Breaks connections and stops a process with SIGTERM at the same time."""
    cut_connections(world)
    stop(world)


def forget_a_frozen_owner(world: World) -> None:
    """Freezes the owner for a long time, expires its ids, and starts a newcomer that takes the flow."""
    for process in _alive_processes(world):
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
    """Writes to the target topic as a different application."""
    partition, _ = _data_leader(world)
    producer_id = 10_000 + world.steps
    world.foreign.add((producer_id, 0))
    world.append(partition, ProducedBatch(producer_id, 0, 0, world.now_ms, False, (-1, -1)))


def impersonate(world: World) -> None:
    """Writes with our producer id and next sequence, but a low epoch, like a producer from a different cluster."""
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
    """Elects a source leader uncleanly; different records replace the tail."""
    source = world.sources[world.random.choice(world.data)]
    source.elect(world.random.randint(max(0, source.end - 12), source.end))
    source.append(world.random.randint(1, 20), world.now_ms - 1000)
    _record_source_offsets(world)


def elect_earlier_source(world: World) -> None:
    """Elects a former source leader uncleanly, with records of its epoch that were never replicated."""
    source = world.sources[world.random.choice(world.data)]
    source.elect_earlier(world.random.randint(1, 8), world.now_ms - 1000)
    source.append(world.random.randint(1, 10), world.now_ms - 1000)
    _record_source_offsets(world)


def lose_marker(world: World) -> None:
    """Loses the next commit marker in one data partition while followers of one delay replication."""
    stop_followers(world)
    lose_data_marker(world)


def lose_data_marker(world: World) -> None:
    """Loses the next commit marker in a data partition, which has no leader at that time."""
    _lose_marker(world, world.data, {COMMIT})


def lose_internal_marker(world: World) -> None:
    """Loses the next marker in a partition of an internal topic, which has no leader at that time."""
    lost = world.random.choice((CLAIMS, POSITIONS, POSITIONS))
    _lose_marker(world, [lost], world.random.choice(({COMMIT}, {COMMIT}, {COMMIT, ABORT}, {ABORT})))


def lose_marker_and_die(world: World) -> None:
    """As `lose_internal_marker`; the owner may be killed some requests later."""
    lose_internal_marker(world)
    for process in _alive_processes(world):
        if process.is_owner and world.random.random() < 0.7:
            process.die_after(world.random.randint(5, 60))


def abort_positions(world: World) -> None:
    """Loses the next commit before it arrives; the abort that follows leaves no marker in the offsets topic."""
    world.lost_next.add("EndTxn")
    _lose_marker(world, world.positions, {ABORT})


def _lose_marker(world: World, partitions: Sequence[TopicPartition], kinds: set[int]) -> None:
    def go_offline_before(partition: TopicPartition, marker: Marker) -> None:
        leader = world.leaders[partition]
        if partition in partitions and marker.kind in kinds and leader.is_writable:
            world.before_marker, leader.is_online = None, False
            world.events.append(f"{world.steps} {partition} loses a marker of {marker.producer_id}")
            world.spawn(f"broker of {partition}", _return(world, partition, 20))

    world.before_marker = go_offline_before


def go_offline_while_completing(world: World, request: Request) -> None:
    """Takes the leader away again when a missing marker is written."""
    if isinstance(request, Transaction) and request.commit and request.partitions and world.faults_left > 0:
        world.faults_left -= 1
        partition = world.random.choice(request.partitions)
        if world.leaders[partition].is_online:
            world.leaders[partition].is_online = False
            world.spawn(f"broker of {partition}", _return(world, partition, 20))


def interrupt_completion(world: World, request: Request) -> None:
    """Loses the commit that writes a missing marker; followers delay the marker of its abort."""
    if isinstance(request, Transaction) and request.commit and request.partitions and world.faults_left > 0:
        world.faults_left -= 1
        world.lost_next.add("EndTxn")
        leader = world.leaders[world.random.choice(request.partitions)]
        leader.replicates = False
        world.spawn("followers", _catch_up(world, leader))


def lose_completion(world: World, request: Request) -> None:
    """Loses the commit that writes a missing marker, so that it becomes an abort."""
    if isinstance(request, Transaction) and request.commit and request.partitions and world.faults_left > 0:
        world.faults_left -= 1
        world.lost_next.add("EndTxn")


def elect_after_spares(world: World, request: Request) -> None:
    """As `interrupt_completion`; all data partitions also lose markers when a spare id stores positions after them."""
    interrupt_completion(world, request)
    if not isinstance(request, Transaction) or not request.producer.transactional_id.endswith("-spare"):
        return
    if request.positions and world.faults_left > 0:
        world.faults_left -= 1
        for partition in world.data:
            _elect_before_a_marker(world, partition)


def undo_completion(world: World, request: Request) -> None:
    """Loses the marker that a completing commit writes, or the commit itself."""
    world.random.choice((go_offline_while_completing, interrupt_completion))(world, request)


def rewrite_source_again(world: World, request: Request) -> None:
    """Rewrites the source again when a loss is detected, before anything after it is fetched."""
    if isinstance(request, ReportLoss) and world.faults_left > 0:
        world.faults_left -= 1
        source = world.sources[request.partition]
        source.elect(max(0, request.next_source_offset - world.random.randint(1, 5)))
        source.append(world.random.randint(1, 20), world.now_ms - 1000)
        _record_source_offsets(world)


def return_before_spares(world: World, request: Request) -> None:
    """Brings leaders back just before a task takes its spare id."""
    if isinstance(request, InitProducerId) and request.transactional_id.endswith("-spare"):
        for partition in world.data:
            bring_back(world, partition)


def hold_markers(world: World) -> None:
    """Delays markers for a long time."""
    world.slow_markers_until = world.steps + 1000


def elect_before_a_marker(world: World) -> None:
    """Elects a target leader uncleanly, so that the last commit marker and all after it are lost."""
    _elect_before_a_marker(world, _data_leader(world)[0])


def _elect_before_a_marker(world: World, partition: TopicPartition) -> None:
    leader = world.leaders[partition]
    ends = [batch.base_offset for batch in leader.log.batches if batch.marker == COMMIT]
    if ends and leader.is_online:
        world.elect(partition, ends[-1])
        world.events.append(f"{world.steps} {partition} elects before a marker at {ends[-1]}")


def elect_source(world: World) -> None:
    """Elects a source leader from the in-sync replicas; new records have a new leader epoch."""
    source = world.sources[world.random.choice(world.data)]
    source.elect(source.end)
    source.append(world.random.randint(1, 10), world.now_ms - 1000)
    _record_source_offsets(world)


def compact_source(world: World) -> None:
    """Compacts a source partition."""
    world.sources[world.random.choice(world.data)].compact(world.random)


def append_to_source(world: World) -> None:
    """Appends recent records to the source, or old ones if the world has them."""
    for source in world.sources.values():
        is_old = world.random.random() < world.options.old_share
        source.append(world.random.randint(1, 12), world.now_ms - (3 * 24 * HOUR_MS if is_old else 1000))
    _record_source_offsets(world)


def slow_down_target(world: World) -> None:
    """Sets the target's time for each record to one, two or four times the initial value."""
    world.record_ms = world.options.record_ms * world.random.choice((1, 2, 4))


def limit_batches(world: World) -> None:
    """Lowers the batch limit of the target (max.message.bytes after recompression)."""
    _, leader = _data_leader(world)
    leader.max_records = world.random.choice((1, 2, 3))


def _record_source_offsets(world: World) -> None:
    for partition, source in world.sources.items():
        for record in source.records:
            world.source_offsets[partition, record.number] = record.offset
