"""The claim: the record by which a process says that it owns a flow, and which transactional ids its tasks use.

Claims are stored on the target in `mm2-claims.<source alias>.internal`, which has one partition and is
compacted. They are written inside a transaction of the flow's lock, so only the newest owner can write one. The
owner renews its claim while it runs, and marks it as `left` when it stops. A switchover marks it as `ended`, and then no
process takes the flow until that is cleared (`flow_end`).
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from typing import Any

from mirrorflow_core.java.json_text import integer_field, parsed_object, text_field
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.transaction_log import DecidedRecords
from mirrorflow_core.writer.transactional_ids import TransactionalIds

RENEW_MS = 5_000
ABANDONED_MS = 15_000  # a claim that was not renewed for so long no longer protects its owner


def claims_topic(source_alias: str) -> str:
    """Returns the name of the claims topic; always with ".", like the worker's internal topics of MM2."""
    return f"mm2-claims.{source_alias}.internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One owner of a flow: a process, or the processes of a Connect group, whose leader claims it.

    `lock_id` and `lock_epoch` are the producer that wrote it; `time_ms` is the owner's wall clock.
    """

    flow: str
    process: str | None  # None: none has owned the flow, a switchover only holds it
    source_alias: str
    group: str | None = None  # group.id; None: one process
    tasks: int
    lock_id: int = -1  # -1 as in Kafka: no producer id
    lock_epoch: int
    source_cluster_id: str | None = None  # None, as below: its brokers report none
    target_cluster_id: str | None = None
    left: bool = False
    ended: str | None = None  # the id of the switchover that has ended the flow; None: it may be taken
    started: str | None = (
        None  # the id of the last switchover that has set where the flow starts (`flow_start`); None: none has
    )
    # The id of a switchover that was to start the flow, which never ran, and was rolled back or has not done so yet; None: none.
    released: str | None = None
    time_ms: int

    @property
    def has_run(self) -> bool:
        """Whether a process has owned the flow, or a switchover has started it. Until then a claim only holds it (`hold_flow`)."""
        return self.process is not None or self.started is not None

    @property
    def writer_ids(self) -> tuple[str, ...]:
        """The transactional ids of all tasks of this owner."""
        ids = TransactionalIds(self.source_alias)
        tasks = [ids.task(number) for number in range(self.tasks)]
        return tuple(name for task in tasks for name in (*task, task.spare))

    @property
    def running_process(self) -> str | None:
        """The process that owns the flow, for users: `process 4711 on host a`; None if it has left or never was."""
        if self.left or self.process is None:
            return None
        host, _, rest = self.process.partition("/")
        return f"process {rest.partition('/')[0]} on host {host}"

    def renewed(
        self, now_ms: int, *, lock_id: int, lock_epoch: int, left: bool = False, ended: str | None = None
    ) -> "Claim":
        """Returns the claim as the owner writes it at *now_ms*."""
        return replace(self, time_ms=now_ms, lock_id=lock_id, lock_epoch=lock_epoch, left=left, ended=ended)


def encode_claim(claim: Claim) -> tuple[bytes, bytes]:
    """Returns key and value of the claim's record, as compact JSON; absent texts are empty there."""
    body = {name: "" if value is None else value for name, value in asdict(claim).items()}
    key = {"flow": body.pop("flow")}
    return tuple(json.dumps(part, separators=(",", ":")).encode() for part in (key, body))  # type: ignore[return-value]


def decode_claim(key: bytes, value: bytes) -> Claim:
    """Returns the claim in a record. Raises ValueError if it is not one."""
    members = parsed_object(key) | parsed_object(value)
    left = members.get("left", False)
    if not isinstance(left, bool):
        message = "left is not a boolean"
        raise ValueError(message)  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    numbers = {"tasks", "lock_id", "lock_epoch", "time_ms"}
    texts = {field.name for field in fields(Claim)} - numbers - {"left"}
    values: dict[str, Any] = {name: text_field(members, name) for name in texts}
    values |= {name: values[name] or None for name in texts - {"flow", "source_alias"}}
    values |= {name: integer_field(members, name) for name in numbers}
    return Claim(**values, left=left)


def ids_to_take(
    claims: DecidedRecords[Claim], own: Claim, positions: Iterable[WriterPosition]
) -> tuple[str, ...]:
    """Returns every transactional id that a newcomer must initialize before it claims the flow.

    Those are its own, those of the last committed claim and of all claims after it, and those that a position
    without `left` names: the smaller claim of an owner that has died since would hide them.
    """
    effective = (*claims.committed[-1:], *claims.undecided, own)
    most = max(claim.tasks for claim in effective)
    ids: dict[str, None] = {}
    for claim in effective:
        ids |= dict.fromkeys(replace(claim, tasks=most).writer_ids)
    for position in positions:
        if position.open_writer is not None:
            ids |= dict.fromkeys(position.open_writer)
    return tuple(ids)


def ended_by(claims: DecidedRecords[Claim]) -> str | None:
    """Returns the id of the switchover that the newest committed claim names as the flow's end; None: none."""
    return claims.committed[-1].ended if claims.committed else None


def is_end_pending(claims: DecidedRecords[Claim]) -> bool:
    """Returns whether an open transaction has a newer claim that ends the flow, or clears the end.

    It can be committed already: its marker is written after the response, and is lost while the claims have no leader
    (KAFKA-20734). A process that takes the lock decides it.
    """
    return any(claim.ended != ended_by(claims) for claim in claims.pending)


@dataclass(frozen=True, slots=True)
class ClaimWatch:
    """What a waiting newcomer knows of the newest claim: which one it is, and since when it has not changed."""

    claim: Claim | None
    since_ms: int  # on the newcomer's own monotonic clock

    def observe(self, claim: Claim | None, now_ms: int) -> "ClaimWatch":
        """Returns the watch after another look at the claims topic."""
        return self if claim == self.claim else ClaimWatch(claim, now_ms)

    def may_take(self, now_ms: int) -> bool:
        """Returns whether the flow may be taken: it has no owner, or the owner has left or no longer renews its claim.

        An ended flow may not, however old its claim is.
        """
        if self.claim is None:
            return True
        return self.claim.ended is None and (self.claim.left or now_ms - self.since_ms >= ABANDONED_MS)
