"""The topic of decisions on the target: proposing, and reading what was decided (DESIGN 4.2, clause 1).

Promises: `decide` returns what the topic says, never what we proposed; a producer id is never used that a broker has not
given for this flow.
"""

from collections.abc import Sequence
from dataclasses import replace

from mirrorflow_replicator.errors import (
    ClusterChangedError,
    FlowExistsError,
    NotAuthorizedError,
    StreamChangedError,
)
from mirrorflow_replicator.flow.identity import (
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
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import raise_for
from mirrorflow_replicator.kafka.witnesses import LATEST, batches_between
from mirrorflow_replicator.wire.records import Record
from mirrorflow_replicator.wire.records import decode as decode_records
from mirrorflow_replicator.wire.records import encode as encode_records

# Decisions bind for ever: nothing may be removed, neither by time nor by size nor by key.
TOPIC_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
# As Java's request.timeout.ms: how long the leader waits for its replicas. As long as replica.lag.time.max.ms, after
# which a replica that is silent is not waited for any more.
PRODUCE_TIMEOUT_MS = 30_000
PROPOSALS_PER_BATCH = 2_000  # some 400 bytes each: below the smallest usual max.message.bytes


class IdentityLog:
    """The decisions of one flow."""

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
        """Whether anything can have been decided."""
        topic = self._partition.topic
        if self._cluster.leader(topic, 0) is None:
            await self._cluster.refresh([topic])
        return self._cluster.leader(topic, 0) is not None

    async def read(self) -> Decisions:
        """Read what was decided since the last reading."""
        ends = await admin.list_offsets(self._cluster, [self._partition], LATEST)
        end = ends[self._partition]
        if end.error:
            raise_for(
                end.error, cluster=self._cluster.alias, request="ListOffsets", subject=str(self._partition)
            )
        async for batch, _ in batches_between(self._cluster, self._partition, self._read_to, end.offset):
            for record in decode_records(batch):
                if record.offset < self._read_to or record.key is None or record.value is None:
                    continue
                proposal = decode(bytes(record.key), bytes(record.value))
                if proposal is not None:
                    self.decisions.read(proposal)
        self._read_to = end.offset
        return self.decisions

    async def decide(self, proposals: Sequence[Proposal], *, now_ms: int) -> Decisions:
        """Propose, then read: the first proposal for a key binds, ours or another's."""
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
    cluster: Cluster,
    source_alias: str,
    claim: Claim,
    *,
    generation: int,
    why: str,
    timeout_ms: int,
) -> Identity:
    """A proposal: producer id and epoch from InitProducerId with the flow's transactional id.

    Without the ACL for that id, or where the cluster cannot coordinate transactions, a plain producer id serves as well,
    but nothing can be fenced or pinned with it.
    """
    name = transactional_id(source_alias) if await admin.may_coordinate(cluster) else ""
    producer_id = epoch = -1
    if name:
        try:
            producer_id, epoch = await admin.init_producer_id(cluster, name, timeout_ms=timeout_ms)
        except NotAuthorizedError:
            name = ""
    if not name:
        producer_id, epoch = await admin.init_producer_id(cluster, None, timeout_ms=timeout_ms)
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


async def establish(
    log: IdentityLog,
    cluster: Cluster,
    source_alias: str,
    claim: Claim,
    *,
    java: bool,
    may_change: bool,
    now_ms: int,
    fenced: int = 0,
    beginnings: Sequence[Beginning] = (),
    timeout_ms: int,
) -> Identity:
    """The identity to write with: the decided one, or a new generation where the stream has changed (clause 9).

    *fenced*: that generation's epoch is over. If it is still the decided one, the coordinator has ended it (it aborts what
    nobody commits in time), and a new one goes on with the same stream.

    *java*: positions show that Java MM2 has copied since we did, or that its REST has altered them: then *beginnings* say where
    partitions begin in the new generation. *may_change* only when a process starts: one that was
    fenced while it ran must not answer with a generation of its own, or two copiers with different settings would fence
    each other for ever. Raises ClusterChangedError, FlowExistsError, StreamChangedError.
    """
    await log.ensure()
    decided = (await log.read()).identity
    is_over = decided is not None and decided.generation == fenced
    why = _change(decided, claim, target_alias=cluster.alias, source_alias=source_alias, java=java)
    if decided is not None and not why and not is_over:
        return decided
    if is_over and why in {"", "java"}:
        why = "aborted"
    elif decided is not None and not may_change:
        raise StreamChangedError(source=source_alias, was=claim.stream, now=decided.stream)
    generation = 1 if decided is None else decided.generation + 1
    proposal = await new_identity(
        cluster, source_alias, claim, generation=generation, why=why, timeout_ms=timeout_ms
    )
    # In one batch where they fit: a generation without its beginnings would only be one more fence.
    proposals: Sequence[Proposal] = (*beginnings, proposal)
    while True:
        decided = (await log.decide(proposals, now_ms=now_ms)).identity
        assert decided is not None, "a proposal was acknowledged below the high watermark"
        differs = _change(decided, claim, target_alias=cluster.alias, source_alias=source_alias, java=False)
        if not _outdates(proposal, decided) or (differs and not is_over):
            return decided
        # The coordinator has raised the epoch for us since: with the decided one nothing could be pinned or fenced.
        proposal = replace(proposal, generation=decided.generation + 1)
        proposals = (proposal,)


def _outdates(ours: Identity, decided: Identity) -> bool:
    return ours.producer_id == decided.producer_id and ours.producer_epoch > decided.producer_epoch


def _change(
    decided: Identity | None, claim: Claim, *, target_alias: str, source_alias: str, java: bool
) -> str:
    """Why a new generation is needed; "" if none is."""
    if decided is None:
        return "begin"
    if decided.source_cluster_id != claim.source_cluster_id:
        raise ClusterChangedError(
            alias=source_alias, expected=decided.source_cluster_id, found=claim.source_cluster_id
        )
    if decided.target_cluster_id != claim.target_cluster_id:
        raise ClusterChangedError(
            alias=target_alias, expected=decided.target_cluster_id, found=claim.target_cluster_id
        )
    if decided.flow != claim.flow:
        raise FlowExistsError(
            source=source_alias, target=target_alias, owner=decided.flow, claimant=claim.flow
        )
    if decided.stream != claim.stream:
        return claim.stream
    if decided.policy != claim.policy:
        return f"naming {claim.policy}"
    return "java" if java else ""
