"""What the target holds, cut into the archive's files by their counts."""

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.manifest import ArchivedFile, ArchivedPartition
from mirrorflow_seed.archive.restore_check import ArchivedCopy, FileDigestChecker, RestoreComparison
from mirrorflow_seed.archive.tally import TallyBuilder
from tests.unit.core.wire.strategies import batch_of

RECORDS = [Record(0, 1_700_000_000_000 + n, b"k%d" % n, b"v%d" % n) for n in range(7)]


def verdicts(found: list[Record]) -> list[tuple[str, bool]]:
    """Compares an archive of three files with 3, 3 and 1 records with a target that has *found* from offset 20 on."""
    files = []
    for name, part in (("a", RECORDS[:3]), ("b", RECORDS[3:6]), ("c", RECORDS[6:])):
        tallying = TallyBuilder("id", 2)
        for record in part:
            tallying.add(record)
        files.append(ArchivedFile(path=name, size_bytes=1, start=0, end=1, codec=0, tally=tallying.tally))
    archived = ArchivedPartition(number=2, start=0, end=100, files=tuple(files))
    copy = ArchivedCopy(
        archived=archived, target=TopicPartition("t", 2), start=20, producer_ids=frozenset({1})
    )
    counter = FileDigestChecker(copy, "id")
    at = 20
    for size in (2, 4, 1):
        if found and counter.take(batch_of(found[:size], base_offset=at)):
            break
        found, at = found[size:], at + size
    return counter.verdicts


def test_a_target_with_all_records_is_equal_whatever_its_batches() -> None:
    assert verdicts(RECORDS) == [("a", True), ("b", True), ("c", True)]


def test_changed_or_reordered_record_makes_only_its_file_different() -> None:
    other = RECORDS[4]._replace(value=b"other")
    swapped = [RECORDS[1], RECORDS[0], *RECORDS[2:]]

    assert verdicts([*RECORDS[:4], other, *RECORDS[5:]]) == [("a", True), ("b", False), ("c", True)]
    assert verdicts(swapped) == [("a", False), ("b", True), ("c", True)]


def test_missing_records_are_a_difference() -> None:
    assert verdicts(RECORDS[:5]) == [("a", True), ("b", False), ("c", False)]
    assert verdicts([]) == [("a", False), ("b", False), ("c", False)]


def test_summary_names_files_and_what_could_not_be_compared() -> None:
    said = RestoreComparison(equal=2, different=("x",), undecided=1).summary

    assert "2 of them" in said
    assert "not x" in said
    assert "mirrorflow verify" in said
