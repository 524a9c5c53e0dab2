"""Writes the diverged tails to the new side as the user has chosen: to topics of their own, or to those that applications use.

Nothing is deleted. `tail_writer` guarantees that each record is written once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.errors import ClusterError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import size_bytes
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.switchover.diverged_tail import (
    TailChoice,
    TailProgress,
    kept_topic,
    marked,
    remaining_tail,
)
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.configs import create_with_accepted_settings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.copy.task_parts import flow_topics
from mirrorflow_replicator.switchover.diverged_tail import CountedTail, TailSurvey, require_decided
from mirrorflow_replicator.switchover.errors import TailNotKeptError
from mirrorflow_replicator.switchover.tail_reader import tail_batches
from mirrorflow_replicator.switchover.tail_writer import (
    TRANSACTION_BYTES,
    TailTarget,
    TailTransaction,
    TailWriter,
    read_progress,
)

WRITE_ATTEMPTS_MAX: Final = 8
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_MAX_MESSAGE_BYTES_DEFAULT: Final = 1_048_588  # of brokers
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
# For ever, with the times of the old side, however old or new they are.
_KEPT_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(_INT64_MAX),
    "message.timestamp.after.max.ms": str(_INT64_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTail:
    """What the new side has of the tail of *source*: records in total, and those that were added by this process."""

    source: TopicPartition
    target: TopicPartition
    records: int
    added: int


async def keep_tails(
    settings: SourceSettings, source: Cluster, target: Cluster, survey: TailSurvey
) -> tuple[WrittenTail, ...]:
    """Writes each tail to a topic of its own on *target*, byte for byte; what is there already is not written again.

    Raises TailNotKeptError, TailTakenError, RecordTooLargeError, ClusterError. It can be called again after each of them.
    """
    require_decided(survey)
    targets = await _kept_targets(settings, source, target, survey)
    return await _write(settings, source, target, survey, TailChoice.KEEP, targets)


async def append_tails(
    settings: SourceSettings, source: Cluster, target: Cluster, survey: TailSurvey
) -> tuple[WrittenTail, ...]:
    """Appends each tail to the topic that applications use now, with a header; what is there already is not appended again.

    Raises as `keep_tails`.
    """
    require_decided(survey)
    targets = await _appended_targets(settings, target, survey)
    return await _write(settings, source, target, survey, TailChoice.APPEND, targets)


async def require_written(
    settings: SourceSettings, target: Cluster, survey: TailSurvey, choices: Collection[TailChoice]
) -> None:
    """Raises TailNotKeptError unless each record of *survey* is written by one of *choices*. Raises ClusterError."""
    require_decided(survey)
    left = set(survey.filled)
    for choice in choices:
        progress = await read_progress(target, survey.switchover, choice)
        homes = {tail: _home(settings, survey, tail.partition.topic, choice) for tail in left}
        await target.refresh(set(homes.values()))
        left = {
            tail
            for tail, home in homes.items()
            if remaining_tail(
                tail.tail,
                progress.get(tail.partition),
                source_topic_id=tail.topic_id,
                target_topic_id=target.metadata.topic_id(home),
            )[0]
            < tail.tail.end
        }
    if left:
        tail = min(left, key=lambda counted: counted.partition)
        records = sum(counted.count.records for counted in left)
        raise TailNotKeptError(
            problem=f"The tail of {tail.partition} is not kept ({records} records of {len(left)} partitions)",
            action="keep it first",
        )


def _home(settings: SourceSettings, survey: TailSurvey, topic: str, choice: TailChoice) -> str:
    return (
        _kept_name(topic, survey) if choice is TailChoice.KEEP else flow_topics(settings).target_topic(topic)
    )


def _kept_name(topic: str, survey: TailSurvey) -> str:
    try:
        return kept_topic(topic, survey.switchover)
    except ValueError as error:
        raise TailNotKeptError(
            problem=f"No topic can keep the tail of {topic}: {error}", action="keep it in an archive"
        ) from error


async def _kept_targets(
    settings: SourceSettings, source: Cluster, target: Cluster, survey: TailSurvey
) -> dict[TopicPartition, TailTarget]:
    topics = sorted({tail.partition.topic for tail in survey.filled})
    names = {topic: _kept_name(topic, survey) for topic in topics}
    limits = await _max_message_bytes(source, topics)
    # What was compressed by a producer may be larger when it is compressed again.
    sizes = {topic: min(_INT32_MAX, 2 * limits[topic]) for topic in topics}
    await source.refresh(topics)
    await target.refresh(names.values())
    missing = [
        admin.NewTopic(
            name=names[topic],
            partitions=len(source.metadata.topics[topic].partitions),
            replication_factor=settings.replication_factor,
            configs={**_KEPT_CONFIGS, MAX_MESSAGE_BYTES: str(sizes[topic])},
        )
        for topic in topics
        if target.leader(names[topic], 0) is None
    ]
    outcome = await create_with_accepted_settings(target, missing)
    for name, refusal in outcome.refused.items():
        target.raise_for(refusal.code, "CreateTopics", name, message=refusal.message)
    for name in names.values():
        await admin.wait_for_leaders(target, name)
    return {
        tail.partition: TailTarget(
            partition=TopicPartition(names[tail.partition.topic], tail.partition.partition),
            topic_id=target.metadata.topic_id(names[tail.partition.topic]),
            max_bytes=sizes[tail.partition.topic],
        )
        for tail in survey.filled
    }


async def _appended_targets(
    settings: SourceSettings, target: Cluster, survey: TailSurvey
) -> dict[TopicPartition, TailTarget]:
    on_target = flow_topics(settings).on_target
    homes = {tail.partition: on_target(tail.partition) for tail in survey.filled}
    topics = sorted({home.topic for home in homes.values()})
    await target.refresh(topics)
    if missing := sorted(str(home) for home in homes.values() if target.leader(*home) is None):
        raise TailNotKeptError(
            problem=f"{target.alias} has no partition {', '.join(missing[:3])} to append to",
            action="create it, or keep the tail only",
        )
    limits = await _max_message_bytes(target, topics)
    return {
        key: TailTarget(
            partition=home, topic_id=target.metadata.topic_id(home.topic), max_bytes=limits[home.topic]
        )
        for key, home in homes.items()
    }


async def _max_message_bytes(cluster: Cluster, topics: Sequence[str]) -> dict[str, int]:
    known = await admin.describe_topic_setting(cluster, topics, MAX_MESSAGE_BYTES)
    return {topic: int(known.get(topic) or _MAX_MESSAGE_BYTES_DEFAULT) for topic in topics}


async def _write(
    settings: SourceSettings,
    source: Cluster,
    target: Cluster,
    survey: TailSurvey,
    choice: TailChoice,
    targets: Mapping[TopicPartition, TailTarget],
) -> tuple[WrittenTail, ...]:
    if not survey.filled:
        return ()
    added: dict[TopicPartition, int] = {}
    last = WRITE_ATTEMPTS_MAX
    async for attempt in Backoff(min_s=0.2, max_s=5.0, attempts_max=last):
        # After an error it is unknown what was committed: the progress in the log says it.
        writer = TailWriter(target, survey.switchover, choice, targets)
        try:
            await writer.open(replication_factor=settings.replication_factor)
            for tail in survey.filled:
                added.setdefault(tail.partition, -_written(writer, tail, targets))
            await _TailCopy(settings, source, survey.switchover, choice, writer, targets).run(survey.filled)
        except ClusterError as error:
            if attempt == last or not error.retriable:
                raise
            await target.refresh({target_of.partition.topic for target_of in targets.values()})
        else:
            return tuple(
                WrittenTail(
                    source=tail.partition,
                    target=targets[tail.partition].partition,
                    records=(total := _written(writer, tail, targets)),
                    added=total + added[tail.partition],
                )
                for tail in survey.filled
            )
    raise AssertionError("the last attempt raises")


def _written(writer: TailWriter, tail: CountedTail, targets: Mapping[TopicPartition, TailTarget]) -> int:
    return _remaining(writer, tail, targets)[1]


def _remaining(
    writer: TailWriter, tail: CountedTail, targets: Mapping[TopicPartition, TailTarget]
) -> tuple[int, int]:
    return remaining_tail(
        tail.tail,
        writer.progress.get(tail.partition),
        source_topic_id=tail.topic_id,
        target_topic_id=targets[tail.partition].topic_id,
    )


class _TailCopy:
    """Reads the tails one after the other, and writes them in transactions of a bounded size."""

    def __init__(
        self,
        settings: SourceSettings,
        source: Cluster,
        switchover: str,
        choice: TailChoice,
        writer: TailWriter,
        targets: Mapping[TopicPartition, TailTarget],
    ) -> None:
        self._source = source
        self._switchover = switchover
        self._choice = choice
        self._writer = writer
        self._targets = targets
        self._edits = make_naming(settings).header_edits
        self._transaction = TailTransaction()

    async def run(self, tails: Sequence[CountedTail]) -> None:
        for tail in tails:
            await self._copy(tail)
        await self._flush()

    async def _copy(self, counted: CountedTail) -> None:
        key = counted.partition
        start, written = _remaining(self._writer, counted, self._targets)
        if start >= counted.tail.end:
            return
        edits = self._edits(key.topic)
        async for batch in tail_batches(self._source, counted.tail, start):
            records = batch.records
            if self._choice is TailChoice.APPEND:
                edited = [record._replace(headers=edits.edited(record.headers)) for record in records]
                records = [marked(record, self._switchover) for record in edited]
            if records:
                size = sum(map(size_bytes, records))
                self._transaction.add(key, batch.codec, records, size_bytes=size)
                written += len(records)
            self._note(counted, batch.next_offset, written)
            if self._transaction.bytes >= TRANSACTION_BYTES:
                await self._flush()
        self._note(counted, counted.tail.end, written)

    def _note(self, counted: CountedTail, next_offset: int, written: int) -> None:
        self._transaction.progress[counted.partition] = TailProgress(
            switchover=self._switchover,
            choice=self._choice,
            partition=counted.partition,
            next_offset=next_offset,
            records=written,
            source_topic_id=counted.topic_id,
            target_topic_id=self._targets[counted.partition].topic_id,
        )

    async def _flush(self) -> None:
        transaction, self._transaction = self._transaction, TailTransaction()
        if transaction.progress:
            await self._writer.write(transaction)
