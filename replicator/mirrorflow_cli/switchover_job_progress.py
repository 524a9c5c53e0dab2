"""What the Job of a switchover reports to the operator: its progress, which it serves and leaves as its termination message."""

import contextlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from mirrorflow_cli.output import rfc3339
from mirrorflow_cli.switchover_report import refused_ms
from mirrorflow_core.switchover.guards import is_overtaken
from mirrorflow_core.switchover.loss import LossAssessment
from mirrorflow_core.switchover.record import StateEntry, SwitchoverRecord, newest_record
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_core.switchover.states import PROMOTED, SwitchoverState

PORT_KEY: Final = "HTTP_PORT"
REQUEST_S: Final = 10.0  # a silent client occupies a thread for at most this time
VERSION: Final = 1
# A termination message has 4 KiB: 16 states of 70 bytes, and texts that leave the rest free.
STATES_MAX: Final = 16
TEXT_MAX: Final = 600
NOTES_MAX: Final = 3
NOTE_MAX: Final = 300
LOST_TOPICS_MAX: Final = 10
MESSAGE_MAX_BYTES: Final = 4_096
_NAMES: Final = ("topic", "group")
OVERTAKEN: Final = (
    "Overtaken"  # a state of the report alone: the journal keeps the one in which it was overtaken
)


@dataclass(slots=True, kw_only=True)
class SwitchoverProgress:
    """What is reported to the operator: the newest record of the switchover, and what it waits for."""

    id: str
    record: SwitchoverRecord | None = None  # None: the journals were not read yet
    waits_for: str | None = None
    refusal: str | None = None  # why this process has refused it without a record
    overtaken_by: str | None = None  # the id of the unplanned switchover that was carried out in its place
    notes: Sequence[str] = ()
    active: str | None = (
        None  # the member that the journal says was promoted last; None before the first switchover
    )
    promoted_by: str | None = None  # the id of the switchover that has promoted it
    epoch: int = 0  # of the newest switchover in the journal
    may_copy_back: bool = False  # the positions of the flow back are stored, so that it may be started
    canary: dict[str, Any] | None = None  # what the application of a rehearsal saw
    is_ending: bool = False  # the record has ended, and not everything is known of that yet

    def note_step(self, step: SwitchoverStep, problem: str | None) -> None:
        """Notes the newest step, and the error that the next one repeats; None without one."""
        record = step.record
        self.record, self.waits_for = record, problem or step.waits_for or None
        # The operator keeps the first report of an end, and reads no later one.
        self.is_ending = record.is_at_rest
        # A later switchover that was rolled back has a higher epoch, and a superseded one takes no step.
        if record.state in PROMOTED:
            self.active, self.promoted_by = record.to, record.id
        self.epoch = max(self.epoch, record.epoch)

    def note_journal(self, records: Sequence[SwitchoverRecord]) -> None:
        """Notes what the journals say of all switchovers of the pair."""
        newest = newest_record(records)
        promoted = newest_record(record for record in records if record.state in PROMOTED)
        self.epoch = 0 if newest is None else newest.epoch
        self.active = None if promoted is None else promoted.to
        self.promoted_by = None if promoted is None else promoted.id

    def note_known(self, record: SwitchoverRecord) -> None:
        """Notes what the journal has of the switchover, which this process cannot continue now."""
        self.record = record

    def note_wait(self, problem: str) -> bool:
        """Notes what is waited for; returns whether that is new."""
        is_new, self.waits_for = problem != self.waits_for, problem
        return is_new

    def note_refusal(self, refusal: str) -> None:
        self.refusal = refusal

    def note_canary(self, seen: Mapping[str, Any]) -> None:
        """Notes what the application of a rehearsal saw."""
        self.canary = {**seen, "sentence": seen["sentence"][:NOTE_MAX]}

    def note_superseded(self, known: SwitchoverRecord, records: Sequence[SwitchoverRecord]) -> bool:
        """Notes how *known* has ended where a later switchover of the pair has begun since; False: it is still to be carried out."""
        later = newest_record(record for record in records if record.epoch > known.epoch)
        if later is None:
            return False
        if known.is_at_rest:
            self.note_end(known, ())
            return True
        overtaker = newest_record(record for record in records if is_overtaken(known, [record]))
        if overtaker is None or overtaker.state not in PROMOTED:
            return False
        self.record, self.waits_for, self.overtaken_by = known, None, overtaker.id
        return True

    def note_reverse(self, *, may_copy_back: bool) -> None:
        self.may_copy_back = may_copy_back

    def note_end(self, last: SwitchoverRecord, notes: Sequence[str]) -> None:
        """Notes how the switchover has ended."""
        self.record, self.waits_for, self.notes, self.is_ending = last, None, notes, False
        self.may_copy_back = last.state is SwitchoverState.DONE

    def body(self) -> bytes:
        """Returns the report as JSON; at most 4 KiB."""
        given = self._given()
        while len(encoded := json.dumps(given, separators=(",", ":")).encode()) > MESSAGE_MAX_BYTES:
            for key in ("waitsFor", "reason"):
                given[key] = given[key][: len(given[key]) // 2]
            given["notes"] = given["notes"][:-1]
            given["states"] = given["states"][1:]
            if "loss" in given:
                given["loss"]["topics"] = given["loss"]["topics"][:-1]
            if "canary" in given:
                # The operator reads neither topic nor group here: the Switchover has both.
                sentence = given["canary"]["sentence"]
                given["canary"] = given["canary"] | {"sentence": sentence[: len(sentence) // 2]}
                given["canary"] = {key: value for key, value in given["canary"].items() if key not in _NAMES}
        return encoded

    def _given(self) -> dict[str, Any]:
        record = self.record
        given: dict[str, Any] = {
            "version": VERSION,
            "job": "switchover",
            "switchover": self.id,
            "state": None,
            "waitsFor": (self.waits_for or "")[:TEXT_MAX],
            "reason": (self.refusal or "")[:TEXT_MAX],
            "notes": [note[:NOTE_MAX] for note in self.notes[:NOTES_MAX]],
            "active": self.active or "",
            "promotedBy": self.promoted_by or "",
            "epoch": self.epoch,
            "mayCopyBack": self.may_copy_back,
            "states": [],
        }
        if self.refusal is not None:
            given["state"] = SwitchoverState.REFUSED.value
        elif record is not None:
            shown, history = self._shown_state(record)
            given |= {
                "state": shown.state.value,
                "since": rfc3339(shown.entered_ms),
                "reason": record.reason[:TEXT_MAX],
                "source": record.source,
                "states": [
                    {"state": entry.state.value, "entered": rfc3339(entry.entered_ms)}
                    for entry in history[-STATES_MAX:]
                ],
            }
            if record.fenced_ms:
                given |= {"fenced": rfc3339(record.fenced_ms), "writesRefusedMs": refused_ms(record)}
            if record.seal is not None:
                given["seal"] = {"partitions": len(record.seal.partitions), "sha256": record.seal.sha256}
            if record.known_loss is not None:
                given["loss"] = _loss(record.known_loss)
            if self.canary is not None:
                given["canary"] = self.canary
            if self.overtaken_by is not None:
                given["state"] = OVERTAKEN
                given["reason"] = (
                    f"The unplanned switchover {self.overtaken_by} was carried out in its place."
                )
        return given

    def _shown_state(self, record: SwitchoverRecord) -> tuple[StateEntry, Sequence[StateEntry]]:
        """Returns the state that is reported, and the history up to it: the one before the end, while not everything is known of that."""
        if not self.is_ending:
            return StateEntry(record.state, record.entered_ms), record.history
        history = record.history[:-1]
        return history[-1] if history else StateEntry(SwitchoverState.ACCEPTED, record.created_ms), history


def _loss(loss: LossAssessment) -> dict[str, Any]:
    """Returns what is known to be lost, by topic; the topics with the largest loss, if they are many."""
    by_topic: dict[str, int] = {}
    for partition in loss.lost_partitions:
        by_topic[partition.topic] = by_topic.get(partition.topic, 0) + partition.lost_offsets
    largest = sorted(by_topic.items(), key=lambda item: (-item[1], item[0]))[:LOST_TOPICS_MAX]
    return {
        "lostOffsetsAtLeast": loss.lost_offsets,
        "partitionsWithLoss": len(loss.lost_partitions),
        "partitionsWithUnknownEnd": sum(partition.source_end is None for partition in loss.partitions),
        "knownUntil": None if loss.known_until_ms is None else rfc3339(loss.known_until_ms),
        "sourceAnswered": loss.is_source_answering,
        "topics": [{"topic": topic, "lostOffsetsAtLeast": offsets} for topic, offsets in largest],
    }


class ProgressServer(ThreadingHTTPServer):
    """Serves each request in a thread of its own, which does not keep the process alive."""

    daemon_threads = True


@contextlib.contextmanager
def served(progress: SwitchoverProgress) -> Any:
    """Serves the report meanwhile, where the environment names a port. Any other path is not found."""

    class ProgressRequestHandler(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            is_known = self.path.partition("?")[0] == "/progress"
            body = progress.body() if is_known else b""
            self.send_response(HTTPStatus.OK if is_known else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing: the operator polls every second."""

    port = os.environ.get(PORT_KEY, "")
    if not port:
        yield
        return
    # In a pod, a NetworkPolicy restricts the clients.
    server = ProgressServer(("0.0.0.0", int(port)), ProgressRequestHandler)  # noqa: S104
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
