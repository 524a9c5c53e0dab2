"""The demo's comparison says equal only of what is."""

from tests.harness.demo.comparison import Row, as_text

DIGEST, OTHER = "a" * 64, "a" * 63 + "b"


def _row(source: tuple[int, str], target: tuple[int, str]) -> Row:
    return Row(topic="orders", partition=2, source=source, target=target)


def test_same_count_and_digest_is_equal():
    """Both must agree."""
    assert _row((1000, DIGEST), (1000, DIGEST)).equal


def test_another_digest_is_different_although_the_shown_digits_agree():
    """What is compared is the whole digest, not its shown beginning."""
    row = _row((1000, DIGEST), (1000, OTHER))

    assert not row.equal
    assert "DIFFERENT" in as_text([row])


def test_counts_are_summed_on_each_side():
    """The last line is the sum over all partitions."""
    text = as_text([_row((1000, DIGEST), (1000, DIGEST)), _row((5, DIGEST), (4, OTHER))])

    assert ["all", "2", "1,005", "1,004"] == text.splitlines()[-1].split()
