"""What to do: the texts of the documentation, as it is."""

from pathlib import Path

import pytest

from mirrorflow_console.runbook import advice_for
from mirrorflow_core.stall_detection import StallReason

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("page", ["runbooks.md", "conditions.md"])
def test_texts_are_those_of_the_documentation(page: str):
    text = ROOT / "replicator" / "mirrorflow_console" / "texts" / page

    assert text.resolve() == ROOT / "docs" / page


@pytest.mark.parametrize("reason", [one.value for one in StallReason])
def test_each_stall_has_its_section(reason: str):
    found = advice_for(reason)

    assert found is not None
    assert found.title.endswith(reason)
    assert found.steps


@pytest.mark.parametrize(
    "reason", ["SourceDataLost", "AuthenticationFailed", "Unreachable", "NoAnswer", "DifferencesFound"]
)
def test_frequent_reasons_have_advice(reason: str):
    assert advice_for(reason) is not None


def test_unknown_reason_of_a_stopped_partition_has_the_section_of_stopped_partitions():
    assert advice_for("RecordTooLarge") is None
    found = advice_for("RecordTooLarge", has_stopped=True)

    assert found is not None
    assert found.title == "MirrorFlowPartitionsStopped"
