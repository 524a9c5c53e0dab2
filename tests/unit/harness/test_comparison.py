"""The comparison of the demo reports partitions as equal only if they are."""

from tests.harness.demo.comparison import Row, as_text

DIGEST, OTHER = "a" * 64, "a" * 63 + "b"


def _row(source: tuple[int, str], target: tuple[int, str]) -> Row:
    return Row(topic="orders", partition=2, source=source, target=target)


def test_partitions_with_equal_count_and_digest_are_equal():
    assert _row((1000, DIGEST), (1000, DIGEST)).equal


def test_digests_are_compared_completely_although_only_their_beginning_is_shown():
    row = _row((1000, DIGEST), (1000, OTHER))

    assert not row.equal
    assert "DIFFERENT" in as_text([row])


def test_the_last_line_sums_the_counts_of_each_side():
    text = as_text([_row((1000, DIGEST), (1000, DIGEST)), _row((5, DIGEST), (4, OTHER))])

    assert ["all", "2", "1,005", "1,004"] == text.splitlines()[-1].split()
