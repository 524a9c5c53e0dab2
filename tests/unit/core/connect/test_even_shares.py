"""Even in each kind of work and in sum, and nothing given up that need not be: held against every other way to do it."""

from collections.abc import Iterator, Mapping
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect.even_shares import even_shares

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
