"""What a trial of chaos calls different: each kind of defect is found, and nothing that the trial allows."""

import pytest

from tests.chaos.judgement import Expected, Mark, difference, latest


def mark(number: int, key: str = "k") -> Mark:
    return (number, key.encode(), b"%d" % number, (("n", b"%d" % number),))


SOURCE = [mark(number) for number in range(6)]


@pytest.mark.parametrize(
    "copy",
    [
        pytest.param(SOURCE[:3] + SOURCE[4:], id="one is missing"),
        pytest.param(SOURCE[:3] + SOURCE[2:], id="one is repeated"),
        pytest.param([*SOURCE[:2], SOURCE[3], SOURCE[2], *SOURCE[4:]], id="two are in another order"),
        pytest.param([*SOURCE, mark(9)], id="one is a stranger's"),
        pytest.param([], id="nothing was copied"),
    ],
)
def test_a_copy_that_differs_is_different(copy: list[Mark]) -> None:
    assert difference(Expected(least=SOURCE, most=SOURCE), copy)


def test_an_equal_copy_is_not_different() -> None:
    assert not difference(Expected(least=SOURCE, most=SOURCE), list(SOURCE))


@pytest.mark.parametrize("count", range(7))
def test_between_the_least_and_the_most_all_is_equal(count: int) -> None:
    assert not difference(Expected(least=SOURCE[2:count], most=SOURCE), SOURCE[1:])


def test_any_record_may_be_there_once_where_the_source_lost_some() -> None:
    lost = [mark(20), mark(21)]

    assert not difference(Expected(least=SOURCE, most=None), SOURCE[:4] + lost + SOURCE[4:])
    assert difference(Expected(least=SOURCE, most=None), SOURCE[:4] + lost + lost + SOURCE[4:])
    assert difference(Expected(least=SOURCE, most=None), SOURCE[:4] + lost + SOURCE[5:])


def test_a_record_may_be_there_as_often_as_the_source_has_had_it() -> None:
    """A producer has sent it again after the source had lost it."""
    expected = Expected(least=SOURCE, most=None, again={mark(4): 1})

    assert not difference(expected, SOURCE[:5] + SOURCE[4:])
    assert difference(expected, SOURCE[:5] + SOURCE[4:5] + SOURCE[4:])
    assert difference(expected, SOURCE[:4] + SOURCE[3:])


def test_a_restart_begins_with_the_first_record_and_repeats_nothing_within_itself() -> None:
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


def test_a_flow_that_repeats_is_judged_from_its_last_restart() -> None:
    """The source has lost the records from 4 on, and producers have sent some of them again, in another order."""
    expected = Expected(least=SOURCE, most=None, restarts=True, repeats=True)

    assert not difference(expected, [*SOURCE[:4], *reversed(SOURCE[4:]), *SOURCE])
    assert difference(expected, [*SOURCE[:4], *SOURCE[4:], *SOURCE[:3], *SOURCE[4:]])


def test_a_flow_that_repeats_may_have_records_that_were_sent_again_in_both_places() -> None:
    """The source has lost record 4, and its producer has sent it again behind record 5."""
    expected = Expected(
        least=[*SOURCE[:4], SOURCE[5], SOURCE[4]], most=None, again={mark(4): 1}, repeats=True
    )

    assert not difference(expected, [*SOURCE, SOURCE[4]])
    assert not difference(expected, [*SOURCE[:5], *SOURCE[3:], SOURCE[4]])
    assert difference(expected, SOURCE)
    assert difference(expected, [*SOURCE[:2], SOURCE[3], SOURCE[2], *SOURCE[4:], SOURCE[4]])


def test_compaction_leaves_the_last_record_of_each_key_in_order() -> None:
    assert [mark(1, "b"), mark(3, "a"), mark(4, "c")] == latest(
        [mark(0, "a"), mark(1, "b"), mark(2, "c"), mark(3, "a"), mark(4, "c")]
    )


def test_the_sentence_names_the_first_record() -> None:
    found = difference(Expected(least=SOURCE, most=SOURCE), SOURCE[:3] + SOURCE[4:])

    assert "n=b'3'" in found
    assert "missing" in found
