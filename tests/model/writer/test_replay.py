"""Replaying the event log of a partition without payloads leads to the recorded state."""

import json
from typing import Any

import pytest

from tests.harness.replay import differences
from tests.model.writer.running import run
from tests.model.writer.scenarios import SCENARIOS
from tests.model.writer.task import Task

MORE_SEEDS = 12


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The replay documents of all partitions, collected when their sessions end."""
    documents: list[dict[str, Any]] = []
    close = Task.close

    def close_and_keep(task: Task) -> None:
        documents.extend(json.loads(json.dumps(copier.replay_document())) for copier in task.copiers)
        close(task)

    monkeypatch.setattr(Task, "close", close_and_keep)
    return documents


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_replayed_events_lead_to_the_recorded_state(scenario, documents):
    run(scenario, seed=0)

    assert any(document["segments"] for document in documents)
    assert [differences(document) for document in documents] == [[] for _ in documents]


@pytest.mark.faults
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_replayed_events_lead_to_the_recorded_state_for_many_seeds(scenario, documents):
    for seed in range(1, MORE_SEEDS):
        run(scenario, seed=seed)

        assert [differences(document) for document in documents] == [[] for _ in documents]
        documents.clear()


def test_a_missing_event_is_reported_as_a_difference(documents):
    run(SCENARIOS["race"], seed=0)
    document = next(document for document in documents if document["segments"])
    document["segments"][-1]["events"] = []

    assert differences(document)
