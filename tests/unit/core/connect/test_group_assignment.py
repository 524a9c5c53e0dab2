"""Work shared out among the members of a group: complete, balanced, nothing moved that need not, nothing in two hands."""

from collections.abc import Iterator, Mapping
from itertools import combinations, product

from hypothesis import example, given
from hypothesis import strategies as st

from mirrorflow_core.connect.group_assignment import (
    CONNECTOR,
    MemberDelta,
    Unit,
    Units,
    even_shares,
    rebalance,
)

ROUNDS_MAX = 2  # one that takes away, one that gives it on

WORK = st.frozensets(
    st.builds(Unit, connector=st.sampled_from("abcd"), task=st.integers(min_value=CONNECTOR, max_value=6)),
    max_size=30,
)
MEMBERS = st.lists(st.sampled_from("uvwxyz"), min_size=1, max_size=5, unique=True)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, Units], Units]:
    """Members that hold any part of some work, also the same or what is wanted no more, and what is wanted now."""
    members = draw(MEMBERS)
    return {member: draw(WORK) for member in members}, draw(WORK)


def after(held: Mapping[str, Units], deltas: Mapping[str, MemberDelta]) -> dict[str, Units]:
    return {member: (held[member] - delta.revoked) | delta.assigned for member, delta in deltas.items()}


def settled(held: Mapping[str, Units], wanted: Units) -> dict[str, Units]:
    now = dict(held)
    for _ in range(ROUNDS_MAX):
        now = after(now, rebalance(now, wanted))
    return now


def units(**tasks: int) -> Units:
    """So many tasks of each connector."""
    return frozenset(
        Unit(connector=name, task=task) for name, count in tasks.items() for task in range(count)
    )


def is_task_of(unit: Unit, connector: str) -> bool:
    return unit.connector == connector and unit.task != CONNECTOR


@given(groups())
def test_all_is_done_once_and_evenly(group: tuple[dict[str, Units], Units]) -> None:
    held, wanted = group
    now = settled(held, wanted)
    assert sorted(wanted) == sorted(unit for units in now.values() for unit in units)
    for connectors in (True, False):
        loads = [sum((unit.task == CONNECTOR) is connectors for unit in units) for units in now.values()]
        assert max(loads) - min(loads) <= 1
    for connector in {unit.connector for unit in wanted}:
        loads = [sum(is_task_of(unit, connector) for unit in units) for units in now.values()]
        assert max(loads) - min(loads) <= 1
    assert all(delta == MemberDelta() for delta in rebalance(now, wanted).values())


@given(groups())
def test_revoked_work_is_not_assigned_in_the_same_round(
    group: tuple[dict[str, Units], Units],
) -> None:
    held, wanted = group
    holders = frozenset().union(*held.values())
    for member, delta in rebalance(held, wanted).items():
        assert not delta.assigned & holders
        assert delta.revoked <= held[member]


@example(({member: frozenset() for member in "uvwxy"}, units(a=6, b=4, c=6, d=2)), "s")
@given(groups(), st.sampled_from(["s", "t"]))
def test_no_more_moves_than_an_even_share_asks_for(
    group: tuple[dict[str, Units], Units], newcomer: str
) -> None:
    _, wanted = group
    before = settled(dict.fromkeys(group[0], frozenset()), wanted)
    joined = {**before, newcomer: frozenset[Unit]()}
    now = settled(joined, wanted)
    kinds = sorted({(unit.connector, unit.task == CONNECTOR) for unit in wanted})
    for connector, is_connector in kinds:
        of_kind = frozenset(
            unit for unit in wanted if (unit.connector, unit.task == CONNECTOR) == (connector, is_connector)
        )
        for member in before:
            assert (
                not (before[member] - now[member]) & of_kind or not (now[member] - before[member]) & of_kind
            )
    # A member that gives up a task of one connector for its even share may need one of another for that of all tasks.
    moved = sum(len(before[member] - now[member]) for member in before)
    assert len(now[newcomer]) <= moved < len(now[newcomer]) + max(1, len(kinds))
    # One leaves: only what was his finds another home, unless the rest were uneven by the one that he took.
    left = {member: units for member, units in now.items() if member != newcomer}
    again = rebalance(left, wanted)
    assert not any(delta.revoked for delta in again.values())


@given(groups())
def test_what_two_hold_neither_keeps(group: tuple[dict[str, Units], Units]) -> None:
    """A Java worker that was taken for dead comes back with its former tasks, fenced and failed as they are."""
    held, wanted = group
    for unit in frozenset().union(*held.values()):
        holders = [member for member, units in held.items() if unit in units]
        if len(holders) > 1:
            deltas = rebalance(held, wanted)
            assert all(unit in deltas[member].revoked for member in holders)


def test_tasks_of_a_connector_are_spread() -> None:
    wanted = {Unit(connector=name, task=task) for name in "ab" for task in (-1, 0, 1)}
    now = settled({"x": frozenset(), "y": frozenset()}, frozenset(wanted))
    for units in now.values():
        assert [1, 1] == [sum(unit.connector == name and unit.task >= 0 for unit in units) for name in "ab"]


def test_a_busy_connectors_tasks_are_not_all_on_one_node_beside_idle_ones() -> None:
    busy, idle = (frozenset(Unit(connector=name, task=task) for task in range(2)) for name in "ab")
    held = {"x": busy, "y": idle}  # even in sum
    now = settled(held, busy | idle)
    assert [1, 1] == [len(units & busy) for units in now.values()]
    assert 1 == len(held["x"] - now["x"])


Counts = Mapping[str, Mapping[str, int]]


@st.composite
def works(draw: st.DrawFn) -> tuple[dict[str, dict[str, int]], dict[str, int], dict[str, int]]:
    """Some kinds of work, of which members have any part."""
    members = "xyz"[: draw(st.integers(1, 3))]
    kinds = "abcd"[: draw(st.integers(1, 4))]
    had = {kind: {one: draw(st.integers(0, 4)) for one in members} for kind in kinds}
    counts = {kind: sum(had[kind].values()) + draw(st.integers(0, 3)) for kind in kinds}
    return had, counts, {one: draw(st.integers(0, 2)) for one in members}


def ways(counts: Mapping[str, int], members: Mapping[str, int]) -> Iterator[Counts]:
    """All that are even in each kind and in sum."""
    choices = [
        [
            {one: count // len(members) + (one in more) for one in members}
            for more in combinations(members, count % len(members))
        ]
        for count in counts.values()
    ]
    for way in product(*choices):
        sums = [sum(row[one] for row in way) for one in members]
        if max(sums) - min(sums) <= 1:
            yield dict(zip(counts, way, strict=True))


def kept(had: Counts, quotas: Counts) -> int:
    return sum(min(had[kind][one], quotas[kind][one]) for kind in had for one in had[kind])


@given(works())
def test_it_is_even_and_no_even_way_keeps_more(
    work: tuple[dict[str, dict[str, int]], dict[str, int], dict[str, int]],
) -> None:
    had, counts, totals = work
    quotas = even_shares(had, counts, totals)
    all_ways = [*ways(counts, totals)]
    assert quotas in all_ways
    assert kept(had, quotas) == max(kept(had, way) for way in all_ways)
