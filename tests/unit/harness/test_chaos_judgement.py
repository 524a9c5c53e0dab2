"""The judgement of a chaos trial finds each kind of defect, and accepts what the trial allows."""

import pytest

from tests.chaos.judgement import Expected, Mark, difference, latest


def mark(number: int, key: str = "k") -> Mark:
    return (number, key.encode(), b"%d" % number, (("n", b"%d" % number),))


SOURCE = [mark(number) for number in range(6)]


@pytest.mark.parametrize(
    "copy",
    [
        pytest.param(SOURCE[:3] + SOURCE[4:], id="missing record"),
        pytest.param(SOURCE[:3] + SOURCE[2:], id="repeated record"),
        pytest.param([*SOURCE[:2], SOURCE[3], SOURCE[2], *SOURCE[4:]], id="swapped records"),
        pytest.param([*SOURCE, mark(9)], id="foreign record"),
        pytest.param([], id="nothing copied"),
    ],
)
def test_a_copy_with_a_defect_is_different(copy: list[Mark]) -> None:
    assert difference(Expected(least=SOURCE, most=SOURCE), copy)


def test_an_equal_copy_is_not_different() -> None:
    assert not difference(Expected(least=SOURCE, most=SOURCE), list(SOURCE))


@pytest.mark.parametrize("count", range(7))
def test_a_copy_between_least_and_most_is_equal(count: int) -> None:
    assert not difference(Expected(least=SOURCE[2:count], most=SOURCE), SOURCE[1:])


def test_after_a_loss_any_lost_record_may_be_copied_once() -> None:
    lost = [mark(20), mark(21)]

    assert not difference(Expected(least=SOURCE, most=None), SOURCE[:4] + lost + SOURCE[4:])
    assert difference(Expected(least=SOURCE, most=None), SOURCE[:4] + lost + lost + SOURCE[4:])
    assert difference(Expected(least=SOURCE, most=None), SOURCE[:4] + lost + SOURCE[5:])


def test_a_copy_may_have_a_record_as_often_as_the_source_ever_had_it() -> None:
    """The source lost a record, and its producer sent it again."""
    expected = Expected(least=SOURCE, most=None, rewrites={mark(4): 1})

    assert not difference(expected, SOURCE[:5] + SOURCE[4:])
    assert difference(expected, SOURCE[:5] + SOURCE[4:5] + SOURCE[4:])
    assert difference(expected, SOURCE[:4] + SOURCE[3:])


def test_a_restart_copies_all_records_from_the_first_one_without_repeats() -> None:
    lost = [mark(20), mark(21)]
    expected = Expected(least=SOURCE, most=None, restarts=True)

    assert not difference(expected, SOURCE[:4] + lost + SOURCE)
    assert not difference(expected, SOURCE[:4] + lost + SOURCE[:3] + SOURCE)
    assert difference(expected, SOURCE[:4] + lost + SOURCE[2:])
    assert difference(expected, SOURCE[:4] + lost + lost + SOURCE)
    assert difference(expected, SOURCE[:4] + lost + SOURCE[:5])


def test_a_flow_without_transactional_ids_may_repeat_records_but_not_lose_or_swap_them() -> None:
    expected = Expected(least=SOURCE, most=SOURCE, repeats=True)

    assert not difference(expected, SOURCE[:4] + SOURCE[2:])
    assert difference(expected, SOURCE[:3] + SOURCE[1:3] + SOURCE[4:])
    assert difference(expected, SOURCE[:2] + SOURCE[3:] + SOURCE[2:])
    assert not difference(
        Expected(least=SOURCE, most=None, repeats=True), [*SOURCE[:4], mark(20), *SOURCE[2:]]
    )


def test_an_at_least_once_flow_may_copy_aborted_records_late_when_its_isolation_level_changes() -> None:
    """Record 2 is aborted. The flow omitted it, was killed, and copies again from record 1 with read_uncommitted."""
    expected = Expected(least=[*SOURCE[:2], *SOURCE[3:]], most=SOURCE, repeats=True)

    assert not difference(expected, [*SOURCE[:2], *SOURCE[3:5], *SOURCE[1:]])
    assert difference(expected, [*SOURCE[:2], *SOURCE[4:], *SOURCE[1:]])
    assert difference(expected, [*SOURCE, mark(9)])


def test_an_at_least_once_flow_is_judged_from_its_last_restart() -> None:
    """The source lost records 4 and 5, and producers sent some of them again in a different order."""
    expected = Expected(least=SOURCE, most=None, restarts=True, repeats=True)

    assert not difference(expected, [*SOURCE[:4], *reversed(SOURCE[4:]), *SOURCE])
    assert difference(expected, [*SOURCE[:4], *SOURCE[4:], *SOURCE[:3], *SOURCE[4:]])


def test_an_at_least_once_flow_may_have_a_resent_record_at_both_positions() -> None:
    """The source lost record 4, and its producer sent it again after record 5."""
    expected = Expected(
        least=[*SOURCE[:4], SOURCE[5], SOURCE[4]], most=None, rewrites={mark(4): 1}, repeats=True
    )

    assert not difference(expected, [*SOURCE, SOURCE[4]])
    assert not difference(expected, [*SOURCE[:5], *SOURCE[3:], SOURCE[4]])
    assert difference(expected, SOURCE)
    assert difference(expected, [*SOURCE[:2], SOURCE[3], SOURCE[2], *SOURCE[4:], SOURCE[4]])


def test_compaction_leaves_the_last_record_of_each_key_in_order() -> None:
    assert [mark(1, "b"), mark(3, "a"), mark(4, "c")] == latest(
        [mark(0, "a"), mark(1, "b"), mark(2, "c"), mark(3, "a"), mark(4, "c")]
    )


def test_the_difference_names_the_first_record() -> None:
    message = difference(Expected(least=SOURCE, most=SOURCE), SOURCE[:3] + SOURCE[4:])

    assert "n=b'3'" in message
    assert "missing" in message
