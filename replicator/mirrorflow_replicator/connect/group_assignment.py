"""Which member of a Connect group does what: incremental and cooperative, as KIP-415 has it.

    held by members, wanted in all ──> what each gets in addition, what each must let go

Promises, in each round: what somebody holds is given to nobody else before its holder has let it go, which takes a round
of its own; whoever holds what is still wanted keeps it, up to an even share; what is homeless goes to who has least. As
long as nothing changes, the round after one that revoked ends balanced: connectors and tasks, each counted for itself,
differ by at most one between members, and a further round changes nothing.

Work of a member that is gone is given away at once. Apache's leader keeps it back for `scheduled.rebalance.max.delay.ms`,
five minutes by default, in case that the member comes back, since to move a Java task is expensive; here another process
goes on within seconds, and records wait for nobody.

Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirrorflow_replicator.connect.group_protocol import CONNECTOR, Unit

Units = frozenset[Unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What changes for one member."""

    assigned: Units = frozenset()
    revoked: Units = frozenset()


def share_out(held: Mapping[str, Iterable[Unit]], wanted: Iterable[Unit]) -> dict[str, Share]:
    """The next round: *held* is what each member, at least one, has, *wanted* all that is to be done."""
    members = {member: frozenset(units) for member, units in held.items()}
    everything = frozenset(wanted)
    kept = _kept(members, everything)
    given: dict[str, set[Unit]] = {member: set() for member in members}
    for connectors in (True, False):
        homes = {
            member: {unit for unit in units if (unit.task == CONNECTOR) is connectors}
            for member, units in kept.items()
        }
        homeless = sorted(
            unit
            for unit in everything.difference(*members.values())
            if (unit.task == CONNECTOR) is connectors
        )
        totals = {member: len(kept[member]) + len(given[member]) for member in members}
        quotas = _quotas(homes, totals, sum(map(len, homes.values())) + len(homeless))
        for member, units in homes.items():
            for unit in sorted(units)[quotas[member] :]:
                kept[member].discard(unit)
                units.discard(unit)
        for unit in homeless:
            member = min(
                (member for member in members if len(homes[member]) < quotas[member]),
                key=lambda one: (len(homes[one]), len(kept[one]) + len(given[one]), one),
            )
            homes[member].add(unit)
            given[member].add(unit)
    return {
        member: Share(assigned=frozenset(given[member]), revoked=units - kept[member])
        for member, units in members.items()
    }


def _kept(members: Mapping[str, Units], wanted: Units) -> dict[str, set[Unit]]:
    """What stays where it is as far as its being wanted goes; of two who hold the same, one keeps it."""
    kept: dict[str, set[Unit]] = {}
    taken: set[Unit] = set()
    for member in sorted(members, key=lambda one: (len(members[one]), one)):
        kept[member] = {unit for unit in members[member] if unit in wanted and unit not in taken}
        taken |= kept[member]
    return kept


def _quotas(homes: Mapping[str, set[Unit]], totals: Mapping[str, int], count: int) -> dict[str, int]:
    """How many of *count* units each may have; the one more that some may goes to those who have most already."""
    share, more = divmod(count, len(homes))
    ranked = sorted(homes, key=lambda member: (-len(homes[member]), totals[member], member))
    return {member: share + (rank < more) for rank, member in enumerate(ranked)}
