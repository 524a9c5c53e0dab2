"""Tests the manifest of an archive, the plan of an export, and the checks of both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.archive.export_driver import ExportRangeResult, place_of, require_own_files
from mirrorflow_seed.archive.export_plan import OFFSETS_MIN, plan_ranges
from mirrorflow_seed.archive.manifest import (
    ArchivedConfig,
    ArchivedFile,
    ArchivedPartition,
    ArchivedTopic,
    Gap,
    Manifest,
    decode,
    differences,
    encode,
)
from mirrorflow_seed.errors import ArchiveDamagedError, ArchiveError
from mirrorflow_seed.verify.range_reader import OffsetRange
from mirrorflow_seed.verify.record_digests import Tally

TALLY = Tally(records=2, bytes=10, sum="0a", chain="0b")
FOLDER = "topic=orders/partition=0"


def manifest() -> Manifest:
    file = ArchivedFile(
        path=f"{FOLDER}/part-00000-a.parquet", size_bytes=7, start=5, end=9, codec=3, tally=TALLY
    )
    return Manifest(
        archive_id="abc",
        flow="f",
        source_alias="east",
        source_cluster_id="id",
        isolation="read_uncommitted",
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:01:00+00:00",
        topics=(
            ArchivedTopic(
                name="orders",
                topic_id="",
                configs=(ArchivedConfig(name="cleanup.policy", value="compact", source=1),),
                partitions=(
                    ArchivedPartition(number=0, start=5, end=9, files=(file,), gaps=(Gap(start=5, end=6),)),
                ),
            ),
        ),
    )


def test_manifest_round_trips() -> None:
    assert decode(encode(manifest()), location="here") == manifest()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b'{"format": 2}',
        encode(manifest())[:-20],
        encode(manifest()).replace(b'"files"', b'"f"'),
    ],
    ids=["empty", "object", "list", "later format", "truncated", "unknown field"],
)
def test_invalid_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(ArchiveDamagedError):
        decode(text, location="here")


def test_missing_truncated_and_unknown_files_are_named() -> None:
    path = manifest().files[0].path

    assert list(differences(manifest(), {path: 7})) == []
    assert list(differences(manifest(), {})) == [f"{path} is missing"]
    assert list(differences(manifest(), {path: 6})) == [f"{path} has 6 bytes, not 7"]
    assert list(differences(manifest(), {path: 7, "x": 1})) == ["x is not part of it"]


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3)),
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(
            lambda pair: OffsetRange(pair[0], sum(pair))
        ),
    ),
    st.floats(1, 10**6),
    st.integers(1, 10**9),
)
def test_ranges_cover_each_offset_once_and_have_a_minimum_size(
    extents: dict[TopicPartition, OffsetRange], density: float, file_bytes: int
) -> None:
    ranges = plan_ranges(extents, dict.fromkeys(extents, density), file_bytes=file_bytes)

    assert [archive_range.index for archive_range in ranges] == list(range(len(ranges)))
    for key, extent in extents.items():
        of_partition = sorted(
            (archive_range.start, archive_range.end)
            for archive_range in ranges
            if (archive_range.topic, archive_range.partition) == key
        )
        bounds = [extent.start, *(end for _, end in of_partition)]
        assert [start for start, _ in of_partition] == bounds[:-1]
        assert bounds[-1] == extent.end
        if len(of_partition) > 1:
            assert all(2 * (end - start) >= OFFSETS_MIN for start, end in of_partition)


def test_export_requires_exactly_the_files_of_its_ranges() -> None:
    ranges = plan_ranges({TopicPartition("orders", 0): OffsetRange(5, 9)}, {}, file_bytes=100)
    result = ExportRangeResult(
        index=0, tally=TALLY, codec=0, gaps=(), bytes_read=1, seconds=0.1, path="x", size_bytes=7
    )
    path = place_of(ranges[0], "id")

    require_own_files({path: 7}, ranges, {0: result}, archive_id="id", location="here")
    for present in ({}, {path: 6}, {path: 7, f"{FOLDER}/part-00000-b.parquet": 7}):
        with pytest.raises(ArchiveError):
            require_own_files(present, ranges, {0: result}, archive_id="id", location="here")
