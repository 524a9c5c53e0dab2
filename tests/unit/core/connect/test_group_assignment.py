"""Connectors and tasks are assigned to group members completely, evenly, with few moves and never twice."""

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

ROUNDS_MAX = 2  # one round that revokes work and one that assigns it

WORK = st.frozensets(
    st.builds(Unit, connector=st.sampled_from("abcd"), task=st.integers(min_value=CONNECTOR, max_value=6)),
    max_size=30,
)
MEMBERS = st.lists(st.sampled_from("uvwxyz"), min_size=1, max_size=5, unique=True)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, Units], Units]:
    """Generates the units that members hold, including duplicate and obsolete ones, and the wanted units."""
    members = draw(MEMBERS)
    return {member: draw(WORK) for member in members}, draw(WORK)


def after_rebalance(held: Mapping[str, Units], deltas: Mapping[str, MemberDelta]) -> dict[str, Units]:
    return {member: (held[member] - delta.revoked) | delta.assigned for member, delta in deltas.items()}


def after_all_rounds(held: Mapping[str, Units], wanted: Units) -> dict[str, Units]:
    now = dict(held)
    for _ in range(ROUNDS_MAX):
        now = after_rebalance(now, rebalance(now, wanted))
    return now


def units(**tasks: int) -> Units:
    """Returns units for the given number of tasks of each connector."""
    return frozenset(
        Unit(connector=name, task=task) for name, count in tasks.items() for task in range(count)
    )


def is_task_of(unit: Unit, connector: str) -> bool:
    return unit.connector == connector and unit.task != CONNECTOR


@given(groups())
def test_each_unit_is_assigned_once_and_evenly(group: tuple[dict[str, Units], Units]) -> None:
    held, wanted = group
    now = after_all_rounds(held, wanted)
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
def test_a_rebalance_makes_no_more_moves_than_an_even_share_needs(
    group: tuple[dict[str, Units], Units], newcomer: str
) -> None:
    _, wanted = group
    before = after_all_rounds(dict.fromkeys(group[0], frozenset()), wanted)
    joined = {**before, newcomer: frozenset[Unit]()}
    now = after_all_rounds(joined, wanted)
    kinds = sorted({(unit.connector, unit.task == CONNECTOR) for unit in wanted})
    for connector, is_connector in kinds:
        of_kind = frozenset(
            unit for unit in wanted if (unit.connector, unit.task == CONNECTOR) == (connector, is_connector)
        )
        for member in before:
            assert (
                not (before[member] - now[member]) & of_kind or not (now[member] - before[member]) & of_kind
            )
    # To be even, a member may need to revoke a task of one connector. To be even in total, it may need a task of
    # another one.
    moved = sum(len(before[member] - now[member]) for member in before)
    assert len(now[newcomer]) <= moved < len(now[newcomer]) + max(1, len(kinds))
    # When a member leaves, only its units are assigned again; nothing is revoked.
    remaining = {member: units for member, units in now.items() if member != newcomer}
    deltas = rebalance(remaining, wanted)
    assert not any(delta.revoked for delta in deltas.values())


@given(groups())
def test_a_unit_held_by_two_members_is_revoked_from_both(group: tuple[dict[str, Units], Units]) -> None:
    """A Java worker that rejoins after its session expired still reports its former tasks, which are fenced."""
    held, wanted = group
    for unit in frozenset().union(*held.values()):
        holders = [member for member, units in held.items() if unit in units]
        if len(holders) > 1:
            deltas = rebalance(held, wanted)
            assert all(unit in deltas[member].revoked for member in holders)


def test_the_tasks_of_a_connector_are_spread() -> None:
    wanted = {Unit(connector=name, task=task) for name in "ab" for task in (-1, 0, 1)}
    now = after_all_rounds({"x": frozenset(), "y": frozenset()}, frozenset(wanted))
    for units in now.values():
        assert [1, 1] == [sum(unit.connector == name and unit.task >= 0 for unit in units) for name in "ab"]


def test_tasks_are_spread_by_connector_even_if_totals_are_even() -> None:
    busy, idle = (frozenset(Unit(connector=name, task=task) for task in range(2)) for name in "ab")
    held = {"x": busy, "y": idle}  # even in total
    now = after_all_rounds(held, busy | idle)
    assert [1, 1] == [len(units & busy) for units in now.values()]
    assert 1 == len(held["x"] - now["x"])


Counts = Mapping[str, Mapping[str, int]]


@st.composite
def workloads(draw: st.DrawFn) -> tuple[dict[str, dict[str, int]], dict[str, int], dict[str, int]]:
    """Generates kinds of work with any distribution over the members."""
    members = "xyz"[: draw(st.integers(1, 3))]
    kinds = "abcd"[: draw(st.integers(1, 4))]
    had = {kind: {member: draw(st.integers(0, 4)) for member in members} for kind in kinds}
    counts = {kind: sum(had[kind].values()) + draw(st.integers(0, 3)) for kind in kinds}
    return had, counts, {member: draw(st.integers(0, 2)) for member in members}


def even_distributions(counts: Mapping[str, int], members: Mapping[str, int]) -> Iterator[Counts]:
    """Returns all distributions that are even for each kind and in total."""
    choices = [
        [
            {member: count // len(members) + (member in more) for member in members}
            for more in combinations(members, count % len(members))
        ]
        for count in counts.values()
    ]
    for distribution in product(*choices):
        sums = [sum(row[member] for row in distribution) for member in members]
        if max(sums) - min(sums) <= 1:
            yield dict(zip(counts, distribution, strict=True))


def kept_units(had: Counts, quotas: Counts) -> int:
    return sum(min(had[kind][member], quotas[kind][member]) for kind in had for member in had[kind])


@given(workloads())
def test_the_chosen_even_distribution_keeps_the_most_units(
    work: tuple[dict[str, dict[str, int]], dict[str, int], dict[str, int]],
) -> None:
    had, counts, totals = work
    quotas = even_shares(had, counts, totals)
    distributions = [*even_distributions(counts, totals)]
    assert quotas in distributions
    assert kept_units(had, quotas) == max(kept_units(had, distribution) for distribution in distributions)
