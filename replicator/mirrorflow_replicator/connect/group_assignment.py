"""Which member of a Connect group does what: incremental and cooperative, as KIP-415 has it.

    held by members, wanted in all ──> what each gets in addition, what each must let go

Promises, in each round: what somebody holds is given to nobody else before its holder has let it go, which takes a round
of its own; whoever holds what is still wanted keeps it, up to an even share; what is homeless goes to who has least. As
long as nothing changes, the round after one that revoked ends balanced, and a further round changes nothing. Balanced:
of connectors, of all tasks, and of the tasks of each connector, members have as many, but for one more or less.
So the tasks of one busy connector are not all on one node beside a node with the idle tasks of another.

Work of a member that is gone is given away at once. Apache's leader keeps it back for `scheduled.rebalance.max.delay.ms`,
five minutes by default, in case that the member comes back, since to move a Java task is expensive; here another process
goes on within seconds, and records wait for nobody.

Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirrorflow_replicator.connect.even_shares import even_shares
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
    disputed = _held_by_several(members) & everything
    kept = {member: set(units & everything - disputed) for member, units in members.items()}
    homeless = everything.difference(*members.values())
    given: dict[str, set[Unit]] = {member: set() for member in members}
    for kind_of in (_kind_of_connector, _kind_of_task):
        kinds = sorted({kind for unit in everything if (kind := kind_of(unit)) is not None})
        homes = {
            kind: {
                member: {unit for unit in units if kind_of(unit) == kind} for member, units in kept.items()
            }
            for kind in kinds
        }
        lost = {kind: sorted(unit for unit in homeless if kind_of(unit) == kind) for kind in kinds}
        had = {
            kind: {member: len(units) for member, units in by_member.items()}
            for kind, by_member in homes.items()
        }
        # There is to be room for what is disputed in the next round.
        disputed_of = Counter(kind_of(unit) for unit in disputed)
        counts = {kind: sum(had[kind].values()) + len(lost[kind]) + disputed_of[kind] for kind in kinds}
        totals = {member: len(kept[member]) + len(given[member]) for member in members}
        quotas = even_shares(had, counts, totals)
        for kind in kinds:
            for member, units in homes[kind].items():
                kept[member].difference_update(sorted(units)[quotas[kind][member] :])
            _give(lost[kind], homes[kind], quotas[kind], given)
    return {
        member: Share(assigned=frozenset(given[member]), revoked=units - kept[member])
        for member, units in members.items()
    }


def _kind_of_connector(unit: Unit) -> str | None:
    """All connectors are of one kind."""
    return "" if unit.task == CONNECTOR else None


def _kind_of_task(unit: Unit) -> str | None:
    """Tasks are of one kind with those of the same connector."""
    return None if unit.task == CONNECTOR else unit.connector


def _held_by_several(members: Mapping[str, Units]) -> Units:
    """What nobody is to keep, as with Java's leader: of two who hold it, one was taken for dead and does not know it.

    Ours come back with nothing. A Java worker comes back with all it had, and its tasks, fenced meanwhile, have failed for good.
    """
    holders = Counter(unit for units in members.values() for unit in units)
    return frozenset(unit for unit, count in holders.items() if count > 1)


def _give(
    lost: Sequence[Unit],
    homes: Mapping[str, set[Unit]],
    quotas: Mapping[str, int],
    given: Mapping[str, set[Unit]],
) -> None:
    """Let homeless units fill what members may have in addition to what they have."""
    counts = {member: min(len(units), quotas[member]) for member, units in homes.items()}
    for unit in lost:
        room = (member for member in homes if counts[member] < quotas[member])
        member = min(room, key=lambda one: (counts[one], len(given[one]), one))
        counts[member] += 1
        given[member].add(unit)
