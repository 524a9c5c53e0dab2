"""The advice of the console is the text of the documentation."""

from pathlib import Path

import pytest

from mirrorflow_console.runbook import advice_for
from mirrorflow_core.stall_detection import StallReason

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("page", ["runbooks.md", "conditions.md"])
def test_the_texts_are_links_to_the_documentation(page: str):
    text = ROOT / "replicator" / "mirrorflow_console" / "texts" / page

    assert text.resolve() == ROOT / "docs" / page


@pytest.mark.parametrize("reason", [reason.value for reason in StallReason])
def test_each_stall_reason_has_a_runbook(reason: str):
    advice = advice_for(reason)

    assert advice is not None
    assert advice.title.endswith(reason)
    assert advice.steps


@pytest.mark.parametrize(
    "reason", ["SourceDataLost", "AuthenticationFailed", "Unreachable", "NoAnswer", "DifferencesFound"]
)
def test_frequent_reasons_have_advice(reason: str):
    assert advice_for(reason) is not None


def test_a_stopped_partition_with_an_unknown_reason_has_the_runbook_of_stopped_partitions():
    assert advice_for("RecordTooLarge") is None
    advice = advice_for("RecordTooLarge", has_stopped=True)

    assert advice is not None
    assert advice.title == "MirrorFlowPartitionsStopped"
