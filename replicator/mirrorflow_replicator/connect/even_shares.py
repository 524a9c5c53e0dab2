"""Even in each kind of work and even in sum: how many units of each kind every member of a group may have.

Promises: of each kind, and of all kinds together, members have as many, but for one more or less; among all such quotas
these let members keep the most of what they have. So work that is even already stays where it is.

Of each kind everybody has the even share rounded down; only who has one more is to be decided. That is a flow of least
cost: begin with whoever has one more already, then pass single ones on, along the cheapest path, from a member that has
most in sum to one that has least, until nothing is gained by it. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Counts = Mapping[str, Mapping[str, int]]  # kind -> member -> units
Step = tuple[str, str, str]  # of this kind, one less for this member, one more for that


def even_shares(
    had: Counts, counts: Mapping[str, int], totals: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Kind -> member -> units: of *counts* units of each kind, of which members have *had*.

    *totals* names the members; where nothing else decides, who has less there is given more.
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
    """A distribution that is even in each kind: *more* says who has one more of it, *sums* of how many kinds."""

    had: Counts
    counts: Mapping[str, int]
    totals: Mapping[str, int]
    more: dict[str, set[str]]
    sums: dict[str, int]

    def base(self, kind: str) -> int:
        return self.counts[kind] // len(self.totals)

    def begin(self) -> None:
        """One more first for those who have it, then for those who have least."""
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
        """Whether one more of *kind* is one that *member* has already."""
        return self.had[kind][member] > self.base(kind)

    def better(self) -> list[Step]:
        """The steps that make the sums more even, or, where those are even, let somebody keep more; none at the end."""
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
        """Between each two members the step that costs least: one that has to let go costs one, one that keeps gains one."""
        for giver in self.totals:
            for taker in self.totals:
                choices = [
                    (self.keeps(kind, giver) - self.keeps(kind, taker), kind)
                    for kind, members in self.more.items()
                    if giver in members and taker not in members
                ]
                if choices:
                    yield (giver, taker), min(choices)
