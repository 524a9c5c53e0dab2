"""Encodes and decodes the metadata and assignments that the members of a Connect group exchange.

They travel through the group coordinator in the format of `IncrementalCooperativeConnectProtocol` of Kafka
4.3. Version 1 is called `compatible`, version 2 `sessioned`; they differ only in the number and in that
requests between members of a sessioned group are signed. Big endian; a STRING has an int16 length; arrays and
bytes have an int32 length, -1 for null. The eager protocol (version 0) is neither written nor read.

Pure. `connect.group_assignment` computes assignments; `stores.group_membership` sends and receives these
bytes.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

PROTOCOL_TYPE: Final = "connect"
PROTOCOLS: Final = {"sessioned": 2, "compatible": 1}  # versions by name, preferred first
NO_ERROR: Final = 0
CONFIG_MISMATCH: Final = 1  # the leader could not read the config topic as far as another member
CONNECTOR: Final = -1  # task number of the connector itself
_STRING_MAX: Final = 32_767


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


NO_URL: Final = "NOTUSED"  # what a member advertises that serves no HTTP, as Java's MirrorMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """The metadata that a member sends to the leader when it joins."""

    url: str  # REST URL for other members, or NO_URL
    config_offset: int
    held: GroupAssignment | None = field(default=None)  # None: the member holds nothing


def encode_state(state: MemberState, version: int) -> bytes:
    """Return *state* as a member's metadata."""
    held = None if state.held is None else encode_assignment(state.held, version)
    return b"".join(
        (
            struct.pack(">h", version),
            _string(state.url),
            struct.pack(">q", state.config_offset),
            struct.pack(">i", -1) if held is None else struct.pack(">i", len(held)) + held,
        )
    )


def decode_state(data: bytes) -> MemberState:
    """Return the decoded metadata of a member.

    Raises ValueError for an unsupported version or truncated data.
    """
    read = _ProtocolReader(data)
    read.version()
    url, offset, size = read.string(), read.number(">q"), read.number(">i")
    held = None if size < 0 else decode_assignment(read.take(size))
    return MemberState(url=url, config_offset=offset, held=held)


def encode_assignment(assignment: GroupAssignment, version: int) -> bytes:
    """Return *assignment* as Java writes it, connectors before tasks."""
    return b"".join(
        (
            struct.pack(">hh", version, assignment.error),
            _string(assignment.leader),
            _string(assignment.leader_url),
            struct.pack(">q", assignment.config_offset),
            _units(assignment.assigned),
            _units(assignment.revoked),
            struct.pack(">i", assignment.delay_ms),
        )
    )


def decode_assignment(data: bytes) -> GroupAssignment:
    """Return the decoded assignment. Raises ValueError for an unsupported version or truncated data."""
    read = _ProtocolReader(data)
    read.version()
    return GroupAssignment(
        error=read.number(">h"),
        leader=read.string(),
        leader_url=read.string(),
        config_offset=read.number(">q"),
        assigned=read.units(),
        revoked=read.units(),
        delay_ms=read.number(">i"),
    )


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > _STRING_MAX:
        message = f"a text of {len(data)} bytes does not fit into Connect's group protocol"
        raise ValueError(message)
    return struct.pack(">h", len(data)) + data


def _units(units: Iterable[Unit]) -> bytes:
    by_connector: dict[str, list[int]] = {}
    # In the order in which Java fills its map, connectors before tasks, so that equal sets give equal bytes.
    for unit in sorted(units, key=lambda one: (one.task != CONNECTOR, one.connector, one.task)):
        by_connector.setdefault(unit.connector, []).append(unit.task)
    out = [struct.pack(">i", len(by_connector))]
    for connector, tasks in by_connector.items():
        out += [_string(connector), struct.pack(f">i{len(tasks)}i", len(tasks), *tasks)]
    return b"".join(out)


class _ProtocolReader:
    """Reads fields one after the other; raises ValueError where the data ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            message = "it ends in the middle of a field"
            raise ValueError(message)
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return int(value)

    def version(self) -> int:
        version = self.number(">h")
        # As in Java, later versions are accepted: they add fields after the known ones.
        if version < min(PROTOCOLS.values()):
            message = f"version {version} is none of the cooperative protocol's"
            raise ValueError(message)
        return version

    def string(self) -> str:
        return self.take(self.number(">h")).decode()

    def units(self) -> frozenset[Unit]:
        found: set[Unit] = set()
        for _ in range(self.number(">i")):  # null, -1, means empty
            connector = self.string()
            found.update(Unit(connector=connector, task=self.number(">i")) for _ in range(self.number(">i")))
        return frozenset(found)
