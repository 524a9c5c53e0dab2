"""Random seals and records of switchovers."""

from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.record import ReverseStart, StateEntry, SwitchoverLimits, SwitchoverRecord
from mirrorflow_core.switchover.seal import PartitionSeal, Seal
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType

OFFSETS = st.integers(min_value=0, max_value=2**63 - 1)
MILLISECONDS = st.integers(min_value=0, max_value=2**45)
NUMBERS = st.integers(min_value=0, max_value=2**31 - 1)
# A lone surrogate is no text: neither Kafka nor Kubernetes has a name or sentence with one.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PARTITIONS = st.builds(TopicPartition, TEXTS, NUMBERS)
STATES = st.sampled_from(SwitchoverState)


def _partition_seal(partition: TopicPartition) -> st.SearchStrategy[PartitionSeal]:
    return st.builds(
        PartitionSeal,
        topic=st.just(partition.topic),
        partition=st.just(partition.partition),
        topic_id=TEXTS,
        end=OFFSETS,
        last_stable=OFFSETS,
        copied=OFFSETS,
        records=NUMBERS,
        digest=TEXTS,
    )


SEALS = st.builds(
    Seal,
    pair=TEXTS,
    switchover=TEXTS,
    epoch=NUMBERS,
    attempt=NUMBERS,
    digest_key=TEXTS,
    partitions=st.sets(PARTITIONS, max_size=3)
    .map(sorted)
    .flatmap(lambda partitions: st.tuples(*map(_partition_seal, partitions))),
)
RECORDS = st.builds(
    SwitchoverRecord,
    id=TEXTS,
    pair=TEXTS,
    type=st.sampled_from(SwitchoverType),
    source=TEXTS,
    to=TEXTS,
    created_ms=MILLISECONDS,
    limits=st.builds(
        SwitchoverLimits, checking_ms=MILLISECONDS, refused_ms=MILLISECONDS, quiet_ms=MILLISECONDS
    ),
    allows_live_groups=st.booleans(),
    state=STATES,
    epoch=NUMBERS,
    runner=TEXTS,
    revision=NUMBERS,
    attempt=NUMBERS,
    fenced_ms=MILLISECONDS,
    seal=st.none() | SEALS,
    reverse_starts=st.lists(
        st.builds(ReverseStart, topic=TEXTS, partition=NUMBERS, topic_id=TEXTS, offset=OFFSETS), max_size=3
    ).map(tuple),
    reason=TEXTS,
    history=st.lists(st.builds(StateEntry, STATES, MILLISECONDS), max_size=3).map(tuple),
)
