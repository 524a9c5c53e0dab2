"""Writes proposals to the flow's identity topic on the target, and reads the decisions.

See docs/exactly-once.md, clause 1. `decide` returns what the topic holds, never the own proposal unread. A
producer id is used only if a broker has assigned it to this flow.
"""

from collections.abc import Sequence
from dataclasses import replace

from mirrorflow_core.errors import (
    BrokerError,
    ClusterChangedError,
    FlowExistsError,
    NotAuthorizedError,
    StreamChangedError,
)
from mirrorflow_core.exactly_once.identity import (
    FIRST_EPOCH,
    LAST_EPOCH,
    Beginning,
    Claim,
    Decisions,
    Identity,
    Proposal,
    decode,
    encode,
    identity_topic,
    transactional_id,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_core.wire.records import encode as encode_records
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.target_probe import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import EPOCH_IS_OVER, INVALID_PRODUCER_ID_MAPPING, raise_for
from mirrorflow_kafka.stores.compacted_topic import PRODUCE_TIMEOUT_MS, records_between

# The reason of a new generation for a flow that an earlier version began with an epoch below `FIRST_EPOCH`.
LOW_EPOCH = "low epoch"
# No transaction is open, or the coordinator has forgotten the id, or has raised its epoch.
NOTHING_TO_COMMIT = EPOCH_IS_OVER | {INVALID_PRODUCER_ID_MAPPING}
# Decisions bind permanently, so nothing may be removed: neither by time nor by size nor by key.
TOPIC_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
PROPOSALS_PER_BATCH = 2_000  # about 400 bytes each: below the smallest usual max.message.bytes
# InitProducerId calls until an epoch is high enough: each raises it by one, also after the epoch range is
# exhausted and restarts.
RAISES_MAX = 3 * FIRST_EPOCH


def moved_name(flow: str) -> str:
    """Return the flow's name in its last identity once it has one owner.

    Copiers that do not know of owners take it for another flow, and refuse.
    """
    return f"{flow} (one owner)"


class DecisionLog:
    """Reads and writes the decisions of one flow."""

    def __init__(self, cluster: Cluster, source_alias: str, *, replication_factor: int) -> None:
        self.decisions = Decisions()
        self._cluster = cluster
        self._partition = TopicPartition(identity_topic(source_alias), 0)
        self._replication_factor = replication_factor
        self._read_to = 0

    async def ensure(self) -> None:
        """Create the topic if it is missing."""
        topic = self._partition.topic
        await self._cluster.refresh([topic])
        if self._cluster.leader(topic, 0) is None:
            await admin.create_topic_and_wait(
                self._cluster,
                admin.NewTopic(
                    name=topic,
                    partitions=1,
                    replication_factor=self._replication_factor,
                    configs=TOPIC_CONFIGS,
                ),
            )

    async def exists(self) -> bool:
        """Return whether the topic exists, so that there can be decisions."""
        topic = self._partition.topic
        if self._cluster.leader(topic, 0) is None:
            await self._cluster.refresh([topic])
        return self._cluster.leader(topic, 0) is not None

    async def read(self) -> Decisions:
        """Read the decisions since the last call; return all. Records that retention removed are skipped."""
        ends = await admin.list_offsets(self._cluster, [self._partition], LATEST)
        end = ends[self._partition]
        if end.error:
            raise_for(
                end.error, cluster=self._cluster.alias, request="ListOffsets", subject=str(self._partition)
            )
        if self._read_to == 0:
            begins = await admin.list_offsets(self._cluster, [self._partition], EARLIEST)
            self._read_to = max(0, begins[self._partition].offset)
        async for records, _ in records_between(
            self._cluster, self._partition, self._read_to, end.offset, read_committed=False
        ):
            for record in records:
                if record.key is None or record.value is None:
                    continue
                proposal = decode(bytes(record.key), bytes(record.value))
                if proposal is not None:
                    self.decisions.read(proposal, record.timestamp)
        self._read_to = end.offset
        return self.decisions

    async def decide(self, proposals: Sequence[Proposal], *, now_ms: int) -> Decisions:
        """Write *proposals*, then read: the first proposal for a key binds, whichever copier wrote it."""
        for start in range(0, len(proposals), PROPOSALS_PER_BATCH):
            await self._append(proposals[start : start + PROPOSALS_PER_BATCH], now_ms)
        return await self.read()

    async def _append(self, proposals: Sequence[Proposal], now_ms: int) -> None:
        records = [Record(0, now_ms, *encode(proposal), ()) for proposal in proposals]
        batch = encode_records(records, codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
        answers = await admin.produce(self._cluster, {self._partition: batch}, timeout_ms=PRODUCE_TIMEOUT_MS)
        code = answers[self._partition]
        if code:
            raise_for(code, cluster=self._cluster.alias, request="Produce", subject=str(self._partition))


async def new_identity(
    log: DecisionLog,
    cluster: Cluster,
    source_alias: str,
    claim: Claim,
    *,
    earlier: Identity | None,
    generation: int,
    why: str,
    timeout_ms: int,
) -> Identity | None:
    """Return a proposed identity that replaces *earlier*, or None if another copier has decided meanwhile.

    Producer id and epoch come from InitProducerId with the flow's transactional id.

    Without the ACL for that id, or if the cluster cannot coordinate transactions, a plain producer id is
    used; it cannot fence anything, or take part in a transaction, before its first record. That id is kept
    and its epoch is raised here, because brokers raise the epoch only of transactional producers (KIP-360).
    """
    name = transactional_id(source_alias) if await admin.may_coordinate(cluster) else ""
    producer_id = epoch = -1
    if name:
        try:
            raised = await _raised_epoch(log, cluster, name, earlier, timeout_ms=timeout_ms)
            if raised is None:
                return None
            producer_id, epoch = raised
        except NotAuthorizedError:
            name = ""
    if not name:
        if earlier is not None and not earlier.transactional_id and earlier.producer_epoch < LAST_EPOCH:
            producer_id, epoch = earlier.producer_id, max(FIRST_EPOCH, earlier.producer_epoch + 1)
        else:
            producer_id, _ = await admin.init_producer_id(cluster, None, timeout_ms=timeout_ms)
            epoch = FIRST_EPOCH
    return Identity(
        generation=generation,
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional_id=name,
        source_cluster_id=claim.source_cluster_id,
        target_cluster_id=claim.target_cluster_id,
        policy=claim.policy,
        flow=claim.flow,
        stream=claim.stream,
        why=why,
    )


async def _commit_open(cluster: Cluster, earlier: Identity | None) -> None:
    """Commit the open transaction of *earlier*, if any.

    Its records were accepted once each; raising the epoch would abort them, and they would be copied again.
    """
    if earlier is None or not earlier.transactional_id:
        return
    try:
        await admin.end_txn(
            cluster,
            earlier.transactional_id,
            earlier.producer_id,
            earlier.producer_epoch,
            committed=True,
        )
    except BrokerError as error:
        if error.code not in NOTHING_TO_COMMIT:
            raise


async def _raised_epoch(
    log: DecisionLog, cluster: Cluster, name: str, earlier: Identity | None, *, timeout_ms: int
) -> tuple[int, int] | None:
    """Raise the epoch to at least FIRST_EPOCH; return id and epoch, None if another copier decided.

    A delayed process must not raise the epoch while another copier writes with it: that would abort its open
    transaction.
    """
    for _ in range(RAISES_MAX):
        if (await log.read()).identity != earlier:
            return None
        await _commit_open(cluster, earlier)
        producer_id, epoch = await admin.init_producer_id(cluster, name, timeout_ms=timeout_ms)
        if epoch >= FIRST_EPOCH:
            return producer_id, epoch
    raise BrokerError(
        cluster=cluster.alias, request="InitProducerId", code=0, name="the epoch does not rise", subject=name
    )


async def establish(
    log: DecisionLog,
    cluster: Cluster,
    source_alias: str,
    claim: Claim,
    *,
    java: bool,
    may_change: bool,
    now_ms: int,
    fenced: int = 0,
    beginnings: Sequence[Beginning] = (),
    copied_generation: int = 0,
    timeout_ms: int,
) -> Identity:
    """Return the identity to write with: the decided one, or a new generation (clause 9).

    A changed stream needs a new generation. *copied_generation* is the newest generation in the stored
    offsets. If its identity was lost, the next generation continues behind those offsets.

    *fenced* is a generation whose epoch has ended. If it is still the decided one, the coordinator ended it
    (it aborts transactions that are not committed in time), and a new generation continues the same stream.

    *java* means that, according to the stored offsets, Java MM2 has copied since, or its REST API has altered
    them: *beginnings* then hold where partitions begin in the new generation. *may_change* is True only when
    a process starts: a process that was fenced while running must not begin a generation, or two copiers with
    different settings would fence each other for ever.

    Raises ClusterChangedError, FlowExistsError, StreamChangedError.
    """
    await log.ensure()
    while True:
        decided = (await log.read()).identity
        is_over = decided is not None and decided.generation == fenced
        why = _change(decided, claim, target_alias=cluster.alias, source_alias=source_alias, java=java)
        if decided is not None and not is_over and (not why or (why == LOW_EPOCH and not may_change)):
            return decided
        if is_over and why in {"", "java", LOW_EPOCH}:
            why = "aborted"
        elif decided is not None and not may_change:
            raise StreamChangedError(source=source_alias, was=claim.stream, now=decided.stream)
        proposal = await new_identity(
            log,
            cluster,
            source_alias,
            claim,
            earlier=decided,
            generation=1
            + (
                max(log.decisions.last_generation, copied_generation)
                if decided is None
                else decided.generation
            ),
            why=why,
            timeout_ms=timeout_ms,
        )
        if proposal is not None:
            break
    return await _bound(
        log, cluster, source_alias, claim, proposal, beginnings, now_ms=now_ms, is_over=is_over
    )


async def _bound(
    log: DecisionLog,
    cluster: Cluster,
    source_alias: str,
    claim: Claim,
    proposal: Identity,
    beginnings: Sequence[Beginning],
    *,
    now_ms: int,
    is_over: bool,
) -> Identity:
    """Write *proposal* with its *beginnings*; return the decided identity.

    *is_over* means that the previous generation has ended.
    """
    # In one batch if they fit: a generation without its beginnings would have no use but to fence the
    # previous one.
    proposals: Sequence[Proposal] = (*beginnings, proposal)
    while True:
        decided = (await log.decide(proposals, now_ms=now_ms)).identity
        assert decided is not None, "a proposal was acknowledged below the high watermark"
        differs = _change(decided, claim, target_alias=cluster.alias, source_alias=source_alias, java=False)
        if not _outdates(proposal, decided) or (differs and not is_over):
            return decided
        # The coordinator has raised the epoch since, so the decided identity could neither fence nor write in
        # transactions.
        proposal = replace(proposal, generation=decided.generation + 1)
        proposals = (proposal,)


def _outdates(ours: Identity, decided: Identity) -> bool:
    return ours.producer_id == decided.producer_id and ours.producer_epoch > decided.producer_epoch


def check_owner(decided: Identity, claim: Claim, *, target_alias: str, source_alias: str) -> None:
    """Check that *decided* belongs to the same clusters as *claim*, and to its flow or one that it takes over.

    Raises ClusterChangedError, FlowExistsError.
    """
    if decided.source_cluster_id != claim.source_cluster_id:
        raise ClusterChangedError(
            alias=source_alias, expected=decided.source_cluster_id, found=claim.source_cluster_id
        )
    if decided.target_cluster_id != claim.target_cluster_id:
        raise ClusterChangedError(
            alias=target_alias, expected=decided.target_cluster_id, found=claim.target_cluster_id
        )
    names = {claim.flow, *claim.takes_over}
    if decided.flow not in names | set(map(moved_name, names)):
        raise FlowExistsError(
            source=source_alias, target=target_alias, owner=decided.flow, claimant=claim.flow
        )


def _change(
    decided: Identity | None, claim: Claim, *, target_alias: str, source_alias: str, java: bool
) -> str:
    """Return why a new generation is needed; "" if none is."""
    if decided is None:
        return "begin"
    check_owner(decided, claim, target_alias=target_alias, source_alias=source_alias)
    if decided.flow != claim.flow:
        return f"takeover of {decided.flow}"
    if decided.stream != claim.stream:
        return claim.stream
    if decided.policy != claim.policy:
        return f"naming {claim.policy}"
    if java:
        return "java"
    return LOW_EPOCH if decided.producer_epoch < FIRST_EPOCH else ""
