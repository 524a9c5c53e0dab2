"""What the members of a Connect group tell each other through its coordinator, in Java's bytes.

`IncrementalCooperativeConnectProtocol` of Kafka 4.3: version 1 is called `compatible`, version 2 `sessioned`; they differ
in the number alone, and in that requests between members of a sessioned group are signed. Big endian; a STRING has an
int16 length; arrays and bytes an int32 one, -1 for null. The eager protocol (version 0) is neither written nor read.

Pure. Who gets what is `connect.group_assignment`'s; the requests that carry these bytes are `kafka.membership`'s.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

PROTOCOL_TYPE: Final = "connect"
PROTOCOLS: Final = {"sessioned": 2, "compatible": 1}  # by name, preferred first
NO_ERROR: Final = 0
CONFIG_MISMATCH: Final = 1  # the leader could not read the config topic as far as another member has
CONNECTOR: Final = -1  # the number of the task that is the connector itself
_STRING_MAX: Final = 32_767


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Unit:
    """What one member does at a time: a connector (task -1), or one of its tasks."""

    connector: str
    task: int = CONNECTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAssignment:
    """What the leader tells one member: what it gets in addition, and what it must let go.

    As a part of `MemberState` it is all that the member has, with nothing revoked.
    """

    error: int = NO_ERROR
    leader: str  # its member id
    leader_url: str
    config_offset: int  # behind the last record of the config topic that was looked at
    assigned: frozenset[Unit] = frozenset()
    revoked: frozenset[Unit] = frozenset()
    delay_ms: int = 0  # until the group meets again, for work that waits for a lost member


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """What a member tells the leader when it joins."""

    url: str  # where the others reach it
    config_offset: int
    held: GroupAssignment | None = field(default=None)  # None: it has nothing


def encode_state(state: MemberState, version: int) -> bytes:
    """*state* as a member's metadata."""
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
    """A member's metadata; raises ValueError where it is none of these versions."""
    read = _Reader(data)
    read.version()
    url, offset, size = read.string(), read.number(">q"), read.number(">i")
    held = None if size < 0 else decode_assignment(read.take(size))
    return MemberState(url=url, config_offset=offset, held=held)


def encode_assignment(assignment: GroupAssignment, version: int) -> bytes:
    """*assignment* as Java writes it, connectors before tasks."""
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
    """What a leader wrote; raises ValueError where it is none of these versions."""
    read = _Reader(data)
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
    # As Java's map is filled: all connectors first, then the tasks, so that equal sets give equal bytes.
    for unit in sorted(units, key=lambda one: (one.task != CONNECTOR, one.connector, one.task)):
        by_connector.setdefault(unit.connector, []).append(unit.task)
    out = [struct.pack(">i", len(by_connector))]
    for connector, tasks in by_connector.items():
        out += [_string(connector), struct.pack(f">i{len(tasks)}i", len(tasks), *tasks)]
    return b"".join(out)


class _Reader:
    """Takes values off the front of some bytes; raises ValueError where they end."""

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
        # A later version adds fields behind those that are known, as in Java.
        if version < min(PROTOCOLS.values()):
            message = f"version {version} is none of the cooperative protocol's"
            raise ValueError(message)
        return version

    def string(self) -> str:
        return self.take(self.number(">h")).decode()

    def units(self) -> frozenset[Unit]:
        found: set[Unit] = set()
        for _ in range(self.number(">i")):  # null, -1, is as good as empty
            connector = self.string()
            found.update(Unit(connector=connector, task=self.number(">i")) for _ in range(self.number(">i")))
        return frozenset(found)
