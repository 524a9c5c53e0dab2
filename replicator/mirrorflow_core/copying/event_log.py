"""Keeps what a partition did around its last unusual events, so that it can be replayed. No payloads.

    usual events ── an unusual one: segment begins ──> state, event, event, ... ── full: segment ends ──> usual events

An unusual event is any that a partition without faults does not have: a new connection, a refusal, a stop. `PartitionCopier`
adds each event before it handles it, with the results of its packer, which depend on payloads. Replaying the events of a
segment from its first state must reach its last one. Usual events outside of a segment cost a comparison.
"""

import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import wraps
from importlib import import_module
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from mirrorflow_core.errors import MirrorFlowError

VERSION: Final = 2
SEGMENTS_MAX: Final = 2  # of a partition: what it stopped at, and what preceded that
# Events and batch headers in a segment, some 300 bytes each: a resync, and some fetch responses after it.
ENTRIES_MAX: Final = 256
ENTRIES_MIN: Final = 16
TASK_ENTRIES_MAX: Final = 8_192  # in the newest segments of all partitions of a task
_TYPE: Final = "$"  # the key of the type in the JSON form of a value
_PACKAGE: Final = "mirrorflow_core."
_SEQUENCES: Final[tuple[type, ...]] = (tuple, set, frozenset, deque)
State = Callable[[], dict[str, Any]]  # `Recorded.state_values`
P = ParamSpec("P")
T = TypeVar("T")


class Recorded(Protocol):
    """An object whose events are recorded."""

    log: "EventLog"

    def state_values(self) -> dict[str, Any]:
        """Returns what decides its events, as values that can be pickled."""


R = TypeVar("R", bound=Recorded)


@dataclass(slots=True)
class _Segment:
    """Events between two states, which are pickled: that is the fastest way to keep a copy, and most are never read."""

    before: bytes
    events: list[tuple[Any, ...]]
    after: bytes | None = None  # None: it has not ended


class EventLog:
    """The segments of one partition. `events`: those of the present one, to append to; None outside of a segment."""

    __slots__ = ("_entries_max", "_headers", "_segments", "events")

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self.events: list[tuple[Any, ...]] | None = None
        self._entries_max = entries_max
        self._headers = 0  # of batches in the present segment
        self._segments: deque[_Segment] = deque(maxlen=SEGMENTS_MAX)

    @property
    def is_full(self) -> bool:
        """Returns whether the present segment ends before the next event."""
        return self.events is not None and len(self.events) + self._headers >= self._entries_max

    def begin(self, state: State) -> list[tuple[Any, ...]]:
        """Begins a segment with the present *state* before an unusual event, unless there is one with room; returns its events."""
        if self.events is None or self.is_full:
            self.end(state)
            self.events = []
            self._headers = 0
            self._segments.append(_Segment(_pickled(state), self.events))
        return self.events

    def end(self, state: State) -> None:
        """Ends the present segment, if any, with the present *state*."""
        if self.events is not None:
            self._segments[-1].after = _pickled(state)
            self.events = None

    def add_headers(self, headers: Sequence[tuple[Any, ...]]) -> None:
        """Adds the headers of fetched batches to the present segment."""
        assert self.events is not None
        self._headers += len(headers)
        self.events.append(("split", headers))

    def segments(self, state: State) -> list[dict[str, Any]]:
        """Returns the JSON form of each segment, oldest first: the state before it, its events, and the state after it."""
        return [
            {
                "before": to_json(pickle.loads(segment.before)),  # noqa: S301 pickled here
                "events": [to_json(event) for event in segment.events],
                "after": to_json(state() if segment.after is None else pickle.loads(segment.after)),  # noqa: S301
            }
            for segment in self._segments
        ]


def _pickled(state: State) -> bytes:
    return pickle.dumps(state(), protocol=5)


def usual(method: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Adds each call of *method*, a usual event, to the present segment before it is handled."""
    name = method.__name__

    @wraps(method)
    def event(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if (events := self.log.events) is not None:
            events.append((name, args, kwargs))
        return method(self, *args, **kwargs)

    return event


def unusual(method: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Adds each call of *method*, an unusual event, to a segment before it is handled."""
    name = method.__name__

    @wraps(method)
    def event(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.log.begin(self.state_values).append((name, args, kwargs))
        return method(self, *args, **kwargs)

    return event


def to_json(value: Any) -> Any:
    """Returns the JSON form of *value*: numbers, texts and containers of them, enums, errors and objects of this package."""
    kind = type(value)
    if value is None or kind in {bool, int, float, str}:
        return value
    if kind is list:
        return [to_json(item) for item in value]
    if kind is bytes:
        return {_TYPE: "bytes", "hex": value.hex()}
    if isinstance(value, Mapping):
        return {_TYPE: "dict", "items": [[to_json(key), to_json(item)] for key, item in value.items()]}
    if kind in _SEQUENCES:
        return {_TYPE: kind.__name__, "items": [to_json(item) for item in value]}
    name = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(value, Enum):
        return {_TYPE: name, "name": value.name}
    if isinstance(value, tuple):
        return {_TYPE: name, "items": [to_json(item) for item in value]}
    return {_TYPE: name, "fields": {field: to_json(item) for field, item in _fields(value).items()}}


def from_json(value: Any) -> Any:
    """Returns the value whose JSON form is *value*. Raises ValueError for a type that is not of this package."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    name = value[_TYPE]
    if name == "bytes":
        return bytes.fromhex(value["hex"])
    if name == "dict":
        return {from_json(key): from_json(item) for key, item in value["items"]}
    items = [from_json(item) for item in value.get("items", ())]
    for kind in _SEQUENCES:
        if name == kind.__name__:
            return kind(items)
    kind = _class(name)
    if "name" in value:
        return kind[value["name"]]
    return kind(*items) if "items" in value else _made(kind, value["fields"])


def _class(name: str) -> Any:
    module, _, path = name.partition(":")
    if not module.startswith(_PACKAGE):
        raise ValueError(f"{name} is not a type of {_PACKAGE}")
    member: Any = import_module(module)
    for part in path.split("."):
        member = getattr(member, part)
    return member


def _made(kind: Any, values: Mapping[str, Any]) -> Any:
    made = kind.__new__(kind)
    for field, value in values.items():
        object.__setattr__(made, field, from_json(value))
    return made


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, MirrorFlowError):
        return {"args": value.args, **vars(value)}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    return {**{slot: getattr(value, slot) for slot in slots}, **getattr(value, "__dict__", {})}
