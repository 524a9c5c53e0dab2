"""Switchovers of a cluster as the cockpit shows them: from their status, and from the pod of their Job."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client

from mirrorflow_cli.switchover_job_progress import SwitchoverProgress
from mirrorflow_console import cluster_switchovers
from mirrorflow_console.cluster_switchovers import ENDED, ClusterSwitchovers, switchover_document
from mirrorflow_console.flow_views import Level
from mirrorflow_console.switchover_views import SwitchoverView, switchover_view
from mirrorflow_console.switchovers import SeenByCanary, switchover_reading
from mirrorflow_core.switchover.loss import EndEvidence, LossAssessment, PartitionLoss
from mirrorflow_core.switchover.record import StateEntry, SwitchoverRecord
from mirrorflow_core.switchover.seal import PartitionSeal, Seal
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_operator.status.pair_observation import ENDED as ENDED_OF_OPERATOR
from mirrorflow_operator.status.switchover_reports import parse_switchover_report

CREATED = "2026-11-30T10:00:00Z"
CREATED_S = 1_796_032_800.0
PAIR = {
    "spec": {
        "members": {"east": {"flow": "east-to-west"}, "west": {"flow": "west-to-east"}},
        "fence": {"method": "DenyAcl"},
        "deadlineSeconds": 90,
    }
}
_S = SwitchoverState


def resource(
    kind: str = "Planned", *, written: str = "2026-11-30T10:00:04Z", **status: Any
) -> dict[str, Any]:
    fields = [{"time": CREATED}, {"time": written, "subresource": "status"}]
    return {
        "metadata": {
            "name": "move",
            "namespace": "kafka",
            "creationTimestamp": CREATED,
            "managedFields": fields,
        },
        "spec": {"pair": "east-west", "to": "west", "type": kind},
        "status": status,
    }


def report(*states: tuple[SwitchoverState, float], **record: Any) -> dict[str, Any]:
    """Returns what the pod of a Job reports that has entered *states*, each so many seconds after the creation."""
    history = tuple(StateEntry(state, int((CREATED_S + after_s) * 1_000)) for state, after_s in states)
    given = {"type": SwitchoverType.PLANNED, "fenced_ms": history[0].entered_ms, **record}
    known = SwitchoverRecord(
        id="east-west/move",
        pair="east-west",
        source="east",
        to="west",
        created_ms=1,
        state=states[-1][0],
        history=history,
        **given,
    )
    body: dict[str, Any] = SwitchoverProgress(
        id=known.id, record=known, waits_for="Waits for the copy of 7 offsets."
    )._given()
    return body


def view(
    switchover: dict[str, Any],
    reported: dict[str, Any] | None = None,
    *,
    now_s: float = CREATED_S + 10,
    is_running: bool | None = True,
    pair: dict[str, Any] | None = None,
) -> SwitchoverView:
    document = switchover_document(
        switchover, PAIR if pair is None else pair, reported or {}, now_s=now_s, runner="move-abcde"
    )
    reading = switchover_reading(document, is_running=is_running, namespace="kafka")
    assert reading is not None
    return switchover_view(reading, now_s)


def test_the_final_states_are_those_of_the_operator():
    assert ENDED == ENDED_OF_OPERATOR


def test_the_report_of_the_pod_takes_precedence_over_the_status():
    """The operator may be down. The cockpit still shows the state, the seal, the fence, the time left and the wait."""
    partition = PartitionSeal(topic="orders", partition=0, topic_id="a", end=5, last_stable=5, copied=5)
    seal = Seal(pair="east-west", switchover="east-west/move", epoch=1, attempt=1, partitions=(partition,))
    shown = view(resource(state="Fencing"), report((_S.FENCING, 4.0), (_S.DRAINING, 6.0), seal=seal))

    assert ("Draining", "east", "west") == (shown.reading.state, shown.reading.source, shown.reading.to)
    assert (Level.WARNING, "under way", 0.0) == (shown.level, shown.word, shown.age_s)
    assert "Waits for the copy of 7 offsets." == shown.sentence
    assert (6.0, True, 84.0) == (shown.refused_s, shown.is_refusing, shown.left_s)
    assert ("DenyAcl", (("east", "set"),)) == (shown.reading.fence, shown.reading.fences)
    assert (1, seal.sha256) == (shown.reading.seal_partitions, shown.reading.seal_sha256)
    assert {"east": "east-to-west", "west": "west-to-east"} == shown.reading.flows
    (command,) = shown.commands
    assert "kubectl delete pod --namespace kafka -l mirrorflow.io/switchover=move" == command.command
    assert "Rolls it back" == command.meaning


def test_the_status_is_shown_with_its_age_if_the_pod_does_not_respond():
    status = resource(
        state="Fencing",
        source="east",
        states=[{"state": "Fencing", "entered": "2026-11-30T10:00:03.000Z"}],
        writesRefused={"since": "2026-11-30T10:00:03.000Z"},
        waitsFor="Waits for the brokers.",
    )

    young, old = view(status), view(status, now_s=CREATED_S + 60, is_running=None)

    assert (6.0, "under way", 7.0) == (young.age_s, young.word, young.refused_s)
    assert (56.0, "silent", Level.BROKEN) == (old.age_s, old.word, old.level)
    assert ["mirrorflow switchover rollback -f pair.yaml"] == [item.command for item in old.commands]


def test_a_switchover_whose_job_has_not_started_is_shown():
    shown = view(resource(written=CREATED), is_running=None, now_s=CREATED_S + 2)

    assert ("Accepted", "under way", "Waits for its Job to start.") == (
        shown.reading.state,
        shown.word,
        shown.sentence,
    )


def test_a_report_without_a_record_does_not_hide_the_status():
    blank = SwitchoverProgress(id="east-west/move", waits_for="Connects to both clusters.")._given()

    assert "Draining" == view(resource(state="Draining"), blank).reading.state


def test_the_outcome_is_that_of_the_status():
    ended = resource(
        state="Done",
        source="east",
        states=[
            {"state": state, "entered": "2026-11-30T10:00:03.000Z"}
            for state in ("Fencing", "Verifying", "ForwardEnded", "Promoting", "Reversing", "Done")
        ],
        writesRefused={"since": "2026-11-30T10:00:03.000Z", "milliseconds": 1_300},
        seal={"partitions": 3, "sha256": "ab"},
        conditions=[{"type": "Succeeded", "message": "west has become the active member of east-west."}],
        notes=["Restart producers."],
    )

    shown = view(ended, now_s=CREATED_S + 1e6, is_running=None, pair={})

    assert (Level.FINE, "succeeded") == (shown.level, shown.word)
    assert "west has become the active member of east-west." == shown.sentence
    assert (1.3, False, True) == (shown.refused_s, shown.is_refusing, shown.reading.is_equal)
    assert ((), ("Restart producers.",)) == (shown.commands, shown.reading.notes)


def test_the_report_of_the_pod_and_the_status_have_the_same_canary():
    """A pod reports seconds, the status has milliseconds."""
    seen = {
        "passed": True,
        "sentence": "The group has read 0 records again.",
        "client": "confluent-kafka 2.6",
        "recordsAcknowledged": 40,
        "recordsRead": 39,
        "writesRefused": 5,
        "recordsReadAgain": 0,
        "recordsSkipped": 1,
        "seconds": {"notWritten": 1.25},
    }
    reported = {**report((_S.FENCING, 1.0), type=SwitchoverType.REHEARSAL), "canary": seen}
    parsed = parse_switchover_report(json.dumps(reported))
    assert parsed is not None
    assert parsed.canary is not None
    summary = parsed.canary.model_dump(by_alias=True, exclude_none=True)
    written = resource("Rehearsal", state="Rehearsed", canary=summary)

    shown = [view(resource("Rehearsal"), reported).reading, view(written).reading]

    expected = SeenByCanary(
        has_passed=True, sentence="The group has read 0 records again.", client="confluent-kafka 2.6",
        acknowledged=40, read=39, read_again=0, skipped=1, refused=5, not_written_s=1.25,
    )  # fmt: skip
    assert [reading.canary for reading in shown] == [expected, expected]


def test_a_comparison_before_the_last_fence_is_ignored():
    states = [{"state": name, "entered": CREATED} for name in ("Fencing", "GroupsFinal", "Fencing")]

    assert view(resource(state="Fencing", states=states)).reading.is_equal is None


def test_an_unplanned_switchover_shows_what_is_lost_and_its_own_states():
    lost = PartitionLoss(topic="orders", partition=0, copied=60, source_end=85, evidence=EndEvidence.FLOW)
    shown = view(
        resource("Unplanned"),
        report(
            (_S.ASSESSING, 1.0),
            (_S.FORWARD_ENDED, 2.0),
            type=SwitchoverType.UNPLANNED,
            fenced_ms=0,
            loss=LossAssessment(partitions=(lost,)),
        ),
    )

    assert (25, (("orders", 25),)) == (shown.reading.lost_offsets, shown.reading.lost_topics)
    assert ["Assessing", "ForwardEnded", "GroupsClamped", "Promoting", "Degraded"] == [
        cell.name for cell in shown.cells
    ]
    assert (None, ["Rolls it back"]) == (shown.left_s, [item.meaning for item in shown.commands])


def test_degraded_and_overtaken_switchovers_need_attention():
    for state, word in (("Degraded", "degraded"), ("Overtaken", "overtaken")):
        shown = view(resource("Unplanned", state=state), is_running=None, now_s=CREATED_S + 1e6)

        assert (Level.WARNING, word, False) == (shown.level, shown.word, shown.is_under_way)


def test_values_of_wrong_types_are_ignored():
    """A status may be written by an older or a newer operator."""
    odd = resource(state="Draining", states=7, writesRefused="yes", seal=[], notes={}, source=None, loss=1)
    odd["metadata"]["managedFields"] = [{"subresource": "status", "time": "never"}, 3]

    document = switchover_document(odd, {"spec": {"members": [], "fence": 1}}, {}, now_s=1.0, runner="")

    assert switchover_reading(document, is_running=None, namespace="kafka") is None  # its age is unknown


@pytest.mark.parametrize(
    "garbage",
    [
        {"writesRefusedMs": 10**400},
        {"writesRefusedMs": -5},
        {"source": ["east"]},
        {"seal": {"partitions": 10**400, "sha256": "ab"}},
        {
            "loss": {
                "lostOffsetsAtLeast": 10**400,
                "topics": [{"topic": "orders", "lostOffsetsAtLeast": 10**400}],
            }
        },
        {"loss": {"lostOffsetsAtLeast": -1}},
        {"waitsFor": {}, "reason": [1], "notes": {"a": 1}, "states": "Fencing"},
    ],
    ids=["long", "negative", "no-member", "partitions", "loss", "negative-loss", "texts"],
)
def test_invalid_fields_of_a_report_are_ignored(
    garbage: dict[str, Any],
):
    """A user who may create a pod with the label of a Job can report anything."""
    reported = {"state": "Draining", "fenced": CREATED, **garbage}
    shown = view(resource(state="Fencing", writesRefused={"since": CREATED}), reported)

    assert ("Draining", 10.0, 80.0) == (shown.reading.state, shown.refused_s, shown.left_s)
    assert (("east", "set"),) == shown.reading.fences
    assert (0, None, ()) == (shown.reading.seal_partitions, shown.reading.lost_offsets, shown.reading.notes)
    assert {0} >= {offsets for _, offsets in shown.reading.lost_topics}


class DrippingPod(BaseHTTPRequestHandler):
    """Sends one byte of its response now and then, without an end; a read of each byte ends in time."""

    def do_GET(self) -> None:
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for letter in cycle(b"X: y\r\n"):
                self.wfile.write(bytes([letter]))
                time.sleep(0.02)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


def reporting(body: bytes) -> type[BaseHTTPRequestHandler]:
    """Returns the handler of a pod that reports *body*."""

    class Pod(DrippingPod):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    return Pod


@contextmanager
def pods(*handlers: type[BaseHTTPRequestHandler]) -> Iterator[tuple[int, dict[tuple[str, str], Any]]]:
    """Serves each pod at an address of its own; yields their port, and the pods by the keys of their Switchovers."""
    servers: list[ThreadingHTTPServer] = []
    for number, handler in enumerate(handlers):
        port = servers[0].server_port if servers else 0
        servers.append(ThreadingHTTPServer((f"127.77.1.{1 + number}", port), handler))
        servers[-1].daemon_threads = True
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
    running = {}
    for number, served in enumerate(servers):
        meta, status = SimpleNamespace(name=f"pod-{number}"), SimpleNamespace(pod_ip=served.server_address[0])
        running["kafka", f"move-{number}"] = SimpleNamespace(metadata=meta, status=status)
    try:
        yield servers[0].server_port, running
    finally:
        for served in servers:
            served.shutdown()
            served.server_close()


@pytest.mark.parametrize(
    "handler",
    [DrippingPod, reporting(b"x" * 5_000_000), reporting(b"<html>"), reporting(b"[" * 4_000)],
    ids=["dripping", "long", "no-json", "nested"],
)
def test_a_pod_that_sends_anything_does_not_hide_what_other_pods_report(
    handler: type[BaseHTTPRequestHandler], monkeypatch: pytest.MonkeyPatch
):
    """Each pod has one second for its whole response, and all are polled at the same time."""
    monkeypatch.setattr(cluster_switchovers, "POD_MAX_S", 0.5)
    body = json.dumps(report((_S.FENCING, 1), (_S.DRAINING, 2))).encode()
    resources = []
    for number in range(3):
        moved = resource(state="Checking")
        moved["metadata"]["name"] = f"move-{number}"
        resources.append(moved)
    listed = {cluster_switchovers.PAIRS: [], cluster_switchovers.SWITCHOVERS: resources}
    with pods(handler, reporting(body), handler) as (port, running):
        source = ClusterSwitchovers(client.ApiClient(), port=port)
        monkeypatch.setattr(source, "_listed", listed.__getitem__)
        monkeypatch.setattr(source, "_pods", lambda: running)
        source.refresh()
        states = {reading.id: reading.state for reading in source._readings}

    assert states == {"move-0": "Checking", "move-1": "Draining", "move-2": "Checking"}


@pytest.mark.parametrize("status", [403, 404])
@pytest.mark.parametrize("namespaces", [("kafka",), ()])
def test_switchovers_are_read_from_their_status_where_pods_may_not_be_listed(
    monkeypatch: pytest.MonkeyPatch, namespaces: tuple[str, ...], status: int
):
    api: Any = client.ApiClient()
    source = ClusterSwitchovers(api, namespaces=namespaces)
    resources = {"switchovers": [resource(state="Draining")], "mirrorpairs": []}
    monkeypatch.setattr(cluster_switchovers, "listed_resources", lambda _, plural, __: resources[plural])

    def refuse(*_: Any, **__: Any) -> None:
        raise client.ApiException(status=status, reason="refused")

    for name in ("list_namespaced_pod", "list_pod_for_all_namespaces"):
        monkeypatch.setattr(source._core, name, refuse)

    source.refresh()

    (reading,) = source._readings
    assert "Draining" == reading.state


def test_a_namespace_that_may_not_be_read_hides_no_switchover(monkeypatch: pytest.MonkeyPatch):
    """A deleted namespace has no role; and an API server that was just started refuses everything for a moment."""
    refused = {"gone"}

    def listed(_group: str, _version: str, namespace: str, plural: str, **_: Any) -> dict[str, Any]:
        if namespace in refused:
            raise client.ApiException(status=403, reason="Forbidden")
        return {"items": [resource(state="Draining")] if plural == cluster_switchovers.SWITCHOVERS else []}

    source = ClusterSwitchovers(client.ApiClient(), namespaces=("gone", "kafka"))
    monkeypatch.setattr(source._objects, "list_namespaced_custom_object", listed)
    monkeypatch.setattr(source, "_pods", dict)

    for _ in range(2):
        source.refresh()
        assert ["Draining"] == [reading.state for reading in source._readings]
        refused.add("kafka")
