"""Tests that a report with any text fits into a termination message."""

import json

import pytest

from mirrorflow_seed.job_report import MESSAGE_CHARACTERS_MAX, ArchiveReport, JobPhase, encode


@pytest.mark.parametrize("character", ["x", '"', "ж", "\U0001f600", "\0"])
def test_a_report_with_a_long_message_is_json_of_at_most_4_kib(character: str) -> None:
    """Its message is shortened where JSON takes several bytes for a character."""
    message = character * 2 * MESSAGE_CHARACTERS_MAX

    body = encode(ArchiveReport(run_id="1", job="export", phase=JobPhase.FAILED, message=message))

    report = json.loads(body)
    assert len(body) <= 4_096
    assert report["phase"] == "Failed"
    assert message.startswith(report["message"])
    assert len(body) > 3_000 or len(report["message"]) == MESSAGE_CHARACTERS_MAX
