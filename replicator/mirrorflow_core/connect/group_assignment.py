"""Assigns connectors and tasks to the members of a Connect group by cooperative rebalancing (KIP-415).

`worker.group_member` calls it on the leader. Which partitions a task copies is decided in `partition_assignment`.

    units held per member, units to run  ->  per member: units assigned in addition, units to revoke

Guarantees in each rebalance: a unit is assigned to another member only after its holder has revoked it, which
takes a rebalance of its own; a member keeps the units it holds that are still needed, up to its even share;
an unassigned unit goes to the member with the fewest. As long as nothing changes, the rebalance after a
revocation ends balanced, and a further one changes nothing. Balanced: member counts differ by at most one for
connectors, for all tasks, and for the tasks of each connector. So one node never runs all tasks of a busy
connector next to a node with the idle tasks of another.

Units of a lost member are reassigned at once. Apache's leader holds them back for
`scheduled.rebalance.max.delay.ms`, five minutes by default, in case the member returns, because moving a Java
task is expensive. Here another process continues within seconds, and records do not wait.

Members exchange metadata and assignments through the group coordinator, in the format of Kafka 4.3's
`IncrementalCooperativeConnectProtocol`. Version 1 is called `compatible`, version 2 `sessioned`; they differ only in the number
and in that requests between members of a sessioned group are signed. The eager protocol (version 0) is neither written nor read.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from mirrorflow_core.connect.mirror_records import RecordReader, encode_string
from mirrorflow_core.light_dataclasses import dataclass

PROTOCOL_TYPE: Final = "connect"
PROTOCOLS: Final = {"sessioned": 2, "compatible": 1}  # versions by name, preferred first
NO_ERROR: Final = 0
CONFIG_MISMATCH: Final = 1  # the leader could not read the config topic as far as another member
CONNECTOR: Final = -1  # task number of the connector itself
NO_URL: Final = "NOTUSED"  # what a member advertises that serves no HTTP, as Java's MirrorMaker
Counts = Mapping[str, Mapping[str, int]]  # kind -> member -> units
Step = tuple[str, str, str]  # (kind, giver, taker): one unit of the kind moves from giver to taker


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Unit:
    """One unit of work of a member: a connector (task -1) or one of its tasks."""

    connector: str
    task: int = CONNECTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAssignment:
    """The leader's assignment to one member: units to add and units to revoke.

    As part of `MemberState` it holds all units of the member, with nothing revoked.
    """

    error: int = NO_ERROR
    leader: str  # its member id
    leader_url: str
    config_offset: int  # offset after the last config record that was read
    assigned: frozenset[Unit] = frozenset()
    revoked: frozenset[Unit] = frozenset()
    delay_ms: int = 0  # until the next rebalance, for work held back for a lost member


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """The metadata that a member sends to the leader when it joins."""

    url: str  # REST URL for other members, or NO_URL
    config_offset: int
    held: GroupAssignment | None = field(default=None)  # None: the member holds nothing


def encode_state(state: MemberState, version: int) -> bytes:
    """Returns *state* as a member's metadata."""
    held = None if state.held is None else encode_assignment(state.held, version)
    return b"".join(
        (
            struct.pack(">h", version),
            encode_string(state.url),
            struct.pack(">q", state.config_offset),
            struct.pack(">i", -1) if held is None else struct.pack(">i", len(held)) + held,
        )
    )


def decode_state(data: bytes) -> MemberState:
    """Returns the decoded metadata of a member. Raises ValueError for an unsupported version or truncated data."""
    read = _ProtocolReader(data, "metadata")
    read.version()
    url, offset, size = read.string(), read.int64(), read.int32()
    held = None if size < 0 else decode_assignment(read.take(size))
    return MemberState(url=url, config_offset=offset, held=held)


def encode_assignment(assignment: GroupAssignment, version: int) -> bytes:
    """Returns *assignment* as Java writes it, connectors before tasks."""
    return b"".join(
        (
            struct.pack(">hh", version, assignment.error),
            encode_string(assignment.leader),
            encode_string(assignment.leader_url),
            struct.pack(">q", assignment.config_offset),
            _units(assignment.assigned),
            _units(assignment.revoked),
            struct.pack(">i", assignment.delay_ms),
        )
    )


def decode_assignment(data: bytes) -> GroupAssignment:
    """Returns the decoded assignment. Raises ValueError for an unsupported version or truncated data."""
    read = _ProtocolReader(data, "assignment")
    read.version()
    return GroupAssignment(
        error=read.int16(),
        leader=read.string(),
        leader_url=read.string(),
        config_offset=read.int64(),
        assigned=read.units(),
        revoked=read.units(),
        delay_ms=read.int32(),
    )


def _units(units: Iterable[Unit]) -> bytes:
    by_connector: dict[str, list[int]] = {}
    # In the order in which Java fills its map, connectors before tasks, so that equal sets give equal bytes.
    for unit in sorted(units, key=lambda unit: (unit.task != CONNECTOR, unit.connector, unit.task)):
        by_connector.setdefault(unit.connector, []).append(unit.task)
    out = [struct.pack(">i", len(by_connector))]
    for connector, tasks in by_connector.items():
        out += [encode_string(connector), struct.pack(f">i{len(tasks)}i", len(tasks), *tasks)]
    return b"".join(out)


class _ProtocolReader(RecordReader):
    def version(self) -> None:
        version = self.int16()
        # As in Java, later versions are accepted: they add fields after the known ones.
        if version < min(PROTOCOLS.values()):
            raise ValueError(f"version {version} is none of the cooperative protocol's")

    def units(self) -> frozenset[Unit]:
        units: set[Unit] = set()
        for _ in range(self.int32()):  # null, -1, means empty
            connector = self.string()
            units.update(Unit(connector=connector, task=self.int32()) for _ in range(self.int32()))
        return frozenset(units)


def even_shares(
    had: Counts, counts: Mapping[str, int], totals: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Returns kind -> member -> units, for *counts* units of each kind of which members hold *had*.

    For each kind, and for all kinds together, member counts differ by at most one. Among all such distributions,
    members keep the most of what they hold, so work that is already even does not move.

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
    return {
        kind: {total: shares.base(kind) + (total in shares.more[kind]) for total in totals} for kind in counts
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """A distribution that is even per kind: each member has the even share, rounded down, and maybe an extra unit.

    Placing the extra units is a minimum-cost flow: start with the members that already hold one, then move single
    units along the cheapest path from a member with the highest total to one with the lowest, until no move
    improves the result.

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
        """Gives extra units first to members that already hold one, then to those with the fewest."""
        self.more.update({kind: set() for kind in self.counts})
        for only_holders in (True, False):
            for kind, members in self.more.items():
                while len(members) < self.counts[kind] % len(self.totals):
                    room = [
                        total
                        for total in self.totals
                        if total not in members and (not only_holders or self.keeps(kind, total))
                    ]
                    if not room:
                        break
                    taker = min(room, key=lambda total: (self.sums[total], self.totals[total], total))
                    members.add(taker)
                    self.sums[taker] += 1

    def keeps(self, kind: str, member: str) -> bool:
        """Returns whether an extra unit of *kind* is one that *member* already holds."""
        return self.had[kind][member] > self.base(kind)

    def better(self) -> list[Step]:
        """Returns the moves that make the totals more even, or that let members keep more; empty when done.

        Moves of the second sort leave the totals as even as they are.
        """
        most, least = max(self.sums.values()), min(self.sums.values())
        if most == least:
            return []
        steps = dict(self._steps())
        costs = dict.fromkeys((total for total in self.totals if self.sums[total] == most), 0)
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
            (total for total in costs if self.sums[total] == least),
            key=lambda total: (costs[total], self.totals[total], total),
        )
        if most - least == 1 and costs[end] >= 0:
            return []
        path = [last[end]]
        while (giver := path[0][1]) in last:
            path.insert(0, last[giver])
        return path

    def _steps(self) -> Iterator[tuple[tuple[str, str], tuple[int, str]]]:
        """Yields the cheapest move between each two members. Giving up a held unit costs 1, keeping one gains 1."""
        for giver in self.totals:
            for taker in self.totals:
                choices = [
                    (self.keeps(kind, giver) - self.keeps(kind, taker), kind)
                    for kind, members in self.more.items()
                    if giver in members and taker not in members
                ]
                if choices:
                    yield (giver, taker), min(choices)


Units = frozenset[Unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDelta:
    """The units that one member gains and loses in a rebalance."""

    assigned: Units = frozenset()
    revoked: Units = frozenset()


def rebalance(held: Mapping[str, Iterable[Unit]], wanted: Iterable[Unit]) -> dict[str, MemberDelta]:
    """Returns the next assignment per member.

    *held* is what each member has, with at least one member; *wanted* is every unit to run.
    """
    members = {member: frozenset(units) for member, units in held.items()}
    everything = frozenset(wanted)
    disputed = _held_by_several(members) & everything
    kept = {member: set(units & everything - disputed) for member, units in members.items()}
    unassigned = everything.difference(*members.values())
    given: dict[str, set[Unit]] = {member: set() for member in members}
    for kind_of in (_kind_of_connector, _kind_of_task):
        kinds = sorted({kind for unit in everything if (kind := kind_of(unit)) is not None})
        held_by_kind = {
            kind: {
                member: {unit for unit in units if kind_of(unit) == kind} for member, units in kept.items()
            }
            for kind in kinds
        }
        unassigned_by_kind = {
            kind: sorted(unit for unit in unassigned if kind_of(unit) == kind) for kind in kinds
        }
        had = {
            kind: {member: len(units) for member, units in by_member.items()}
            for kind, by_member in held_by_kind.items()
        }
        # Reserve room for the disputed units, which the next rebalance assigns.
        disputed_of = Counter(kind_of(unit) for unit in disputed)
        counts = {
            kind: sum(had[kind].values()) + len(unassigned_by_kind[kind]) + disputed_of[kind]
            for kind in kinds
        }
        totals = {member: len(kept[member]) + len(given[member]) for member in members}
        quotas = even_shares(had, counts, totals)
        for kind in kinds:
            for member, units in held_by_kind[kind].items():
                kept[member].difference_update(sorted(units)[quotas[kind][member] :])
            _assign(unassigned_by_kind[kind], held_by_kind[kind], quotas[kind], given)
    return {
        member: MemberDelta(assigned=frozenset(given[member]), revoked=units - kept[member])
        for member, units in members.items()
    }


def _kind_of_connector(unit: Unit) -> str | None:
    """Returns the one kind of all connectors; None for a task."""
    return "" if unit.task == CONNECTOR else None


def _kind_of_task(unit: Unit) -> str | None:
    """Returns the kind of a task, its connector's name; None for a connector."""
    return None if unit.task == CONNECTOR else unit.connector


def _held_by_several(members: Mapping[str, Units]) -> Units:
    """Returns the units that several members hold, which all of them must revoke, as with Java's leader.

    One of the holders was considered dead and has not noticed. MirrorFlow's workers rejoin with nothing. A
    Java worker rejoins with all it had, and its tasks, fenced meanwhile, have failed permanently.
    """
    holders = Counter(unit for units in members.values() for unit in units)
    return frozenset(unit for unit, count in holders.items() if count > 1)


def _assign(
    unassigned: Sequence[Unit],
    held_by_member: Mapping[str, set[Unit]],
    quotas: Mapping[str, int],
    given: Mapping[str, set[Unit]],
) -> None:
    """Assigns unassigned units to members below their quota."""
    counts = {member: min(len(units), quotas[member]) for member, units in held_by_member.items()}
    for unit in unassigned:
        room = (member for member in held_by_member if counts[member] < quotas[member])
        member = min(room, key=lambda member: (counts[member], len(given[member]), member))
        counts[member] += 1
        given[member].add(unit)
