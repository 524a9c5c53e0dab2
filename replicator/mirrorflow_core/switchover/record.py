"""The record of a switchover in the journal, `mm2-switchovers.internal`, which is compacted and stored on both clusters.

It is written before what it announces is done, so that a process that resumes knows what may have been done already. Of two
copies the one with the higher revision is newer; of two switchovers of a pair, the one with the higher epoch.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from mirrorflow_core.java.json_text import integer_field, parsed_object, text_field
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.json_fields import decoded, object_field
from mirrorflow_core.switchover.loss import LossAssessment, PartitionCut, cut_off, loss_fields, loss_of
from mirrorflow_core.switchover.seal import Seal, seal_fields, seal_of
from mirrorflow_core.switchover.states import (
    AT_REST,
    FINAL,
    ROLLED_BACK,
    SwitchoverState,
    SwitchoverType,
    moved,
)

SWITCHOVERS_TOPIC: Final = "mm2-switchovers.internal"
RECORD_FORMAT: Final = 1
# Each attempt has ten states or fewer; a record must stay small beside its seal.
HISTORY_MAX: Final = 100


class NoSwitchoverRecordError(ValueError):
    """No version of MirrorFlow writes such a record: another program has written it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverLimits:
    """How long a switchover waits, as its user has set it. A limit that is reached before promoting rolls it back."""

    checking_ms: int = 300_000  # the canary and a verification that is fresh enough are awaited so long
    refused_ms: int = 60_000  # for which writes may be refused before promoting
    quiet_ms: int = 500  # for which the ends must be unchanged before they are sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseStart:
    """Where the reverse flow begins in one partition of the target: nothing before `offset` was written by applications."""

    topic: str  # on the target
    partition: int
    topic_id: str
    offset: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class StateEntry:
    """When a state was entered, by the wall clock of the process that carries the switchover out."""

    state: SwitchoverState
    entered_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverRecord:
    """One switchover. *source* is the member whose applications write now, *to* the member that they move to (aliases)."""

    id: str
    pair: str
    type: SwitchoverType
    source: str
    to: str
    created_ms: int
    limits: SwitchoverLimits = SwitchoverLimits()
    allows_live_groups: bool = (
        False  # consumers may stay at the source; they read again what they commit after the last pass
    )
    accepts_loss: bool = False  # of an unplanned switchover: its user accepts what the assessment shows
    # Until here the request, which never changes. From here on what has become of it.
    state: SwitchoverState = SwitchoverState.ACCEPTED
    epoch: int = 0  # of the pair; 0: not admitted yet
    runner: str = ""  # the process that carries it out; unique for each start
    revision: int = 0  # of this record
    attempt: int = 0  # how often the fence was set
    fenced_ms: int = 0  # since when writes may be refused; 0: they are not
    seal: Seal | None = None
    reverse_starts: tuple[ReverseStart, ...] = ()
    loss: LossAssessment | None = None  # of an unplanned switchover, as it was before anything changed
    cuts: tuple[PartitionCut, ...] = ()  # of an unplanned switchover: where the copies ended
    reason: str = (
        ""  # why it was refused or rolled back, or what the user must know of the promotion; "": as planned
    )
    history: tuple[StateEntry, ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        """Orders the records of a pair: the larger, the newer."""
        return self.epoch, self.revision

    @property
    def is_final(self) -> bool:
        """Whether the switchover is over."""
        return self.state in FINAL

    @property
    def is_at_rest(self) -> bool:
        """Whether no process carries the switchover out: it is over, or the clusters wait to be reconciled."""
        return self.state in AT_REST

    @property
    def is_unplanned(self) -> bool:
        """Whether the switchover needs the target alone."""
        return self.type is SwitchoverType.UNPLANNED

    @property
    def known_loss(self) -> LossAssessment | None:
        """What is known to be lost; without what the flow has copied between the assessment and its end."""
        return None if self.loss is None else cut_off(self.loss, self.cuts)

    @property
    def written_first(self) -> str:
        """The member whose journal has the record before the other one's: the one that must not miss it."""
        return self.source if self.state in ROLLED_BACK and not self.is_unplanned else self.to

    @property
    def entered_ms(self) -> int:
        """When the present state was entered."""
        return self.history[-1].entered_ms if self.history else self.created_ms

    def revised(self, **changes: Any) -> "SwitchoverRecord":
        """Returns the next revision of the record, in the same state."""
        return replace(self, revision=self.revision + 1, **changes)

    def moved_to(self, state: SwitchoverState, now_ms: int, **changes: Any) -> "SwitchoverRecord":
        """Returns the next revision of the record, in another state. Asserts that *state* may follow."""
        history = (*self.history, StateEntry(moved(self.state, state), now_ms))[-HISTORY_MAX:]
        return self.revised(state=state, history=history, **changes)

    def reconciled(self, now_ms: int) -> "SwitchoverRecord":
        """Returns the record of an unplanned switchover once the flow back is started: others may begin."""
        return self.moved_to(SwitchoverState.DONE, now_ms)


def encode_record(record: SwitchoverRecord) -> tuple[bytes, bytes]:
    """Returns key and value of the record in the journal, as compact JSON."""
    key = {"pair": record.pair, "switchover": record.id}
    body = {
        "format": RECORD_FORMAT,
        "type": record.type.value,
        "source": record.source,
        "to": record.to,
        "created_ms": record.created_ms,
        "limits": asdict(record.limits),
        "allows_live_groups": record.allows_live_groups,
        "accepts_loss": record.accepts_loss,
        "state": record.state.value,
        "epoch": record.epoch,
        "runner": record.runner,
        "revision": record.revision,
        "attempt": record.attempt,
        "fenced_ms": record.fenced_ms,
        "seal": None if record.seal is None else seal_fields(record.seal),
        "reverse_starts": [
            {
                "topic": start.topic,
                "partition": start.partition,
                "topic_id": start.topic_id,
                "offset": start.offset,
            }
            for start in record.reverse_starts
        ],
        "loss": None if record.loss is None else loss_fields(record.loss),
        "cuts": [asdict(cut) for cut in record.cuts],
        "reason": record.reason,
        "history": [{"state": entry.state.value, "entered_ms": entry.entered_ms} for entry in record.history],
    }
    return _dumped(key), _dumped(body)


def decode_record(key: bytes, value: bytes) -> SwitchoverRecord:
    """Returns the record in the journal's *key* and *value*.

    Raises NoSwitchoverRecordError if another program has written it, and ValueError if a newer version has, or if it is damaged.
    """
    try:
        identity, members = parsed_object(key), parsed_object(value)
        record_format, switchover = integer_field(members, "format"), text_field(identity, "switchover")
    except ValueError as error:
        raise NoSwitchoverRecordError(str(error)) from error
    if "switchover" not in identity:
        raise NoSwitchoverRecordError("its key names no switchover")
    if record_format != RECORD_FORMAT:
        raise ValueError("the switchover was written by a newer version of MirrorFlow; use that version")
    seal, loss = members.get("seal"), members.get("loss")
    members |= {
        "id": switchover,
        "pair": text_field(identity, "pair"),
        "seal": None if seal is None else seal_of(object_field(members, "seal")),
        "loss": None if loss is None else loss_of(object_field(members, "loss")),
    }
    return decoded(SwitchoverRecord, members)


def newest_of_each(records: Iterable[SwitchoverRecord]) -> tuple[SwitchoverRecord, ...]:
    """Returns the newest copy of each switchover in *records*."""
    return tuple({record.id: record for record in sorted(records, key=lambda record: record.key)}.values())


def newest_record(records: Iterable[SwitchoverRecord]) -> SwitchoverRecord | None:
    """Returns the newest of the records of a pair; None if there is none."""
    return max(records, key=lambda record: record.key, default=None)


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
