"""Start offsets of share groups are translated so that no unfinished record is skipped.

Records that may be delivered again are counted.
"""

import pytest

from mirrorflow_core.offsets.checkpoints import (
    DUE,
    HAS_MEMBERS,
    NOT_ASKED,
    NOT_KNOWN,
    OTHER_KIND,
    Group,
    Writable,
)
from mirrorflow_core.offsets.offset_map import MapStream, OffsetMap, PartitionMap
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore
from mirrorflow_core.offsets.offset_translation import TranslatedOffset, Translator
from mirrorflow_core.offsets.share_offsets import (
    REPEATS,
    ShareGroupFacts,
    ShareStart,
    before_known_offsets,
    share_group_offsets,
    starts_to_set,
    translate_starts,
    writable_share_group,
)
from mirrorflow_core.partitions import OffsetPair, TopicPartition

ORDERS, COPY = TopicPartition("orders", 0), TopicPartition("A.orders", 0)
OTHER = TopicPartition("other", 0)


def copied(begin: int, downstream: int, count: int) -> OffsetMap:
    """Returns the map of a copy of *count* records from source offset *begin* on."""
    growing = PartitionMap(MapStream(1, "", ""), OffsetPair(begin - 1, -1, downstream - 1))
    growing.delivered(begin, downstream, count, 0)
    return growing.kept(OffsetPair(begin + count - 1, count - 1, downstream + count - 1))


TRANSLATOR = Translator(OffsetSyncStore(must_read_to_end=False), {ORDERS: copied(100, 0, 50)})


def translate(start: ShareStart, end: int | None) -> TranslatedOffset:
    now = translate_starts(
        {ORDERS: start, OTHER: start},
        {} if end is None else {ORDERS: end},
        selects=lambda topic: topic == "orders",
        rename=lambda partition: TopicPartition(f"A.{partition.topic}", partition.partition),
        translator=TRANSLATOR,
    )
    assert now.keys() == {COPY}
    return now[COPY]


@pytest.mark.parametrize(
    ("start", "end", "at_most", "translation"),
    [
        (ShareStart(offset=140, lag_records=10), 150, 40, "exact"),
        (ShareStart(offset=140, lag_records=4), 150, 46, "bound"),
        (ShareStart(offset=140, lag_records=12), 150, 40, "exact"),
        (ShareStart(offset=140), 150, None, "bound"),
        (ShareStart(offset=140, lag_records=4), None, None, "bound"),
    ],
    ids=["nothing finished after it", "six finished", "the end was read later", "no lag", "no end"],
)
def test_records_finished_after_the_start_offset_may_be_delivered_again(
    start: ShareStart, end: int | None, at_most: int | None, translation: str
):
    translated = translate(start, end)

    assert (translated.upstream_offset, translated.downstream_offset) == (140, 40)
    assert (translated.at_most, translated.translation) == (at_most, translation)


@pytest.mark.parametrize(("offset", "is_before"), [(90, True), (100, False), (120, False)])
def test_a_start_before_all_known_offsets_becomes_the_start_of_the_copy(offset: int, is_before: bool):  # noqa: FBT001
    now = {COPY: translate(ShareStart(offset=offset), 150)}

    assert before_known_offsets(now, TRANSLATOR) == ({COPY} if is_before else set())
    unknown = Translator(OffsetSyncStore(must_read_to_end=False))
    assert not before_known_offsets(now, unknown)


@pytest.mark.parametrize(
    ("own", "due"), [({}, {COPY: 40}), ({COPY: 39}, {COPY: 40}), ({COPY: 40}, {}), ({COPY: 41}, {})]
)
def test_a_start_offset_on_the_target_never_decreases(
    own: dict[TopicPartition, int], due: dict[TopicPartition, int]
):
    assert starts_to_set({COPY: translate(ShareStart(offset=140), 150)}, own) == due


def test_nothing_is_set_for_an_unknown_translation():
    assert not starts_to_set({COPY: TranslatedOffset(upstream_offset=5, downstream_offset=None)}, {})


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (None, Writable.YES),
        (Group(name="g", type="Share", state="Empty"), Writable.YES),
        (Group(name="g", type="Share", state="Stable"), Writable.ACTIVE),
        (Group(name="g", type="Classic", protocol_type="consumer", state="Empty"), Writable.OTHER_KIND),
    ],
)
def test_start_offsets_are_set_only_for_idle_share_groups(group: Group | None, expected: Writable):
    assert writable_share_group(group) is expected


@pytest.mark.parametrize(
    ("own", "writable", "is_synchronised", "problem", "offset", "written", "why"),
    [
        (40, Writable.YES, True, None, 40, True, None),
        (44, Writable.YES, True, None, 40, True, "the target's group is ahead, at 44, and never goes back"),
        (39, Writable.YES, True, None, 40, False, DUE),
        (None, Writable.ACTIVE, True, None, 40, False, HAS_MEMBERS),
        (None, Writable.OTHER_KIND, True, None, 40, False, OTHER_KIND),
        (None, Writable.YES, False, None, 40, False, NOT_ASKED),
        (None, Writable.YES, True, "not authorized", 40, False, "not authorized"),
        (None, Writable.YES, True, None, None, False, NOT_KNOWN),
    ],
)
def test_a_report_line_has_the_reason_why_a_share_group_is_not_on_the_target(
    own: int | None,
    writable: Writable,
    is_synchronised: bool,  # noqa: FBT001
    problem: str | None,
    offset: int | None,
    written: bool,  # noqa: FBT001
    why: str | None,
):
    (line,) = share_group_offsets(
        ShareGroupFacts(
            group="g",
            translated={
                COPY: TranslatedOffset(
                    upstream_offset=140, downstream_offset=offset, at_most=offset, source=ORDERS
                )
            },
            target={} if own is None else {COPY: own},
            writable=writable,
            is_synchronised=is_synchronised,
            problem=problem,
        )
    )

    assert (line.topic, line.target_topic, line.written, line.why) == ("orders", "A.orders", written, why)


def test_a_report_line_has_the_number_of_acknowledged_records_delivered_again():
    (line,) = share_group_offsets(
        ShareGroupFacts(
            group="g",
            translated={COPY: translate(ShareStart(offset=140, lag_records=4), 150)},
            target={COPY: 40},
        )
    )

    assert (line.written, line.why, line.again) == (True, REPEATS, (0, 6))
