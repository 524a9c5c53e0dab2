"""Computes how many units of each kind each group member gets, even per kind and in total.

Guarantees: for each kind, and for all kinds together, member counts differ by at most one. Among all such
quotas, members keep the most of what they hold, so work that is already even does not move.

Every member gets the even share of each kind, rounded down; only the extra units are to be decided. This is a
minimum-cost flow: start with the members that already hold an extra unit, then move single units along the
cheapest path from a member with the highest total to one with the lowest, until no move improves the result.
Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Counts = Mapping[str, Mapping[str, int]]  # kind -> member -> units
Step = tuple[str, str, str]  # (kind, giver, taker): one unit of the kind moves from giver to taker


def even_shares(
    had: Counts, counts: Mapping[str, int], totals: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Return kind -> member -> units, for *counts* units of each kind of which members hold *had*.

    *totals* names the members and their units so far; ties go to the member with fewer.
    """
    shares = _Shares(had=had, counts=counts, totals=totals, more={}, sums=dict.fromkeys(totals, 0))
    shares.begin()
    while path := shares.better():
        for kind, giver, taker in path:
            shares.more[kind].remove(giver)
            shares.more[kind].add(taker)
            shares.sums[giver] -= 1
            shares.sums[taker] += 1
    return {kind: {one: shares.base(kind) + (one in shares.more[kind]) for one in totals} for kind in counts}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """A distribution that is even per kind.

    *more* holds, per kind, the members with an extra unit; *sums* counts the extra units per member.
    """

    had: Counts
    counts: Mapping[str, int]
    totals: Mapping[str, int]
    more: dict[str, set[str]]
    sums: dict[str, int]

    def base(self, kind: str) -> int:
        return self.counts[kind] // len(self.totals)

    def begin(self) -> None:
        """Give extra units first to members that already hold one, then to those with the fewest."""
        self.more.update({kind: set() for kind in self.counts})
        for only_holders in (True, False):
            for kind, members in self.more.items():
                while len(members) < self.counts[kind] % len(self.totals):
                    room = [
                        one
                        for one in self.totals
                        if one not in members and (not only_holders or self.keeps(kind, one))
                    ]
                    if not room:
                        break
                    taker = min(room, key=lambda one: (self.sums[one], self.totals[one], one))
                    members.add(taker)
                    self.sums[taker] += 1

    def keeps(self, kind: str, member: str) -> bool:
        """Return whether an extra unit of *kind* is one that *member* already holds."""
        return self.had[kind][member] > self.base(kind)

    def better(self) -> list[Step]:
        """Return the moves that make the totals more even, or that let members keep more; empty when done.

        Moves of the second sort leave the totals as even as they are.
        """
        most, least = max(self.sums.values()), min(self.sums.values())
        if most == least:
            return []
        steps = dict(self._steps())
        costs = dict.fromkeys((one for one in self.totals if self.sums[one] == most), 0)
        last: dict[str, Step] = {}
        for _ in self.totals:
            before = dict(costs)
            for (giver, taker), (cost, kind) in steps.items():
                if giver in before and (taker not in costs or before[giver] + cost < costs[taker]):
                    costs[taker] = before[giver] + cost
                    last[taker] = (kind, giver, taker)
            if costs == before:
                break
        end = min(
            (one for one in costs if self.sums[one] == least),
            key=lambda one: (costs[one], self.totals[one], one),
        )
        if most - least == 1 and costs[end] >= 0:
            return []
        path = [last[end]]
        while (giver := path[0][1]) in last:
            path.insert(0, last[giver])
        return path

    def _steps(self) -> Iterator[tuple[tuple[str, str], tuple[int, str]]]:
        """Yield the cheapest move between each two members.

        Giving up a held unit costs 1, keeping one gains 1.
        """
        for giver in self.totals:
            for taker in self.totals:
                choices = [
                    (self.keeps(kind, giver) - self.keeps(kind, taker), kind)
                    for kind, members in self.more.items()
                    if giver in members and taker not in members
                ]
                if choices:
                    yield (giver, taker), min(choices)
