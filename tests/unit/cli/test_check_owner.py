"""`mirrorflow check` reports who owns a flow, and what has ended it."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from mirrorflow_cli.commands import check
from mirrorflow_cli.output import Findings
from mirrorflow_core.writer.claim import Claim
from mirrorflow_kafka.client.cluster import Cluster
from tests.unit.connectors.flow_settings import settings
from tests.unit.connectors.test_flow_takeover import CLAIM


class West:
    """A target of which only the id is used."""

    cluster_id = CLAIM.target_cluster_id


@pytest.mark.parametrize("ended", ["", "to-west"])
def test_an_ended_flow_is_reported_as_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: str
):
    """The flow can run: its process waits until the end is cleared."""

    async def newest_claim(*_: object) -> Claim:
        return replace(CLAIM, left=True, ended=ended)

    monkeypatch.setattr(check, "_newest_claim", newest_claim)
    findings = Findings()
    asyncio.run(check.check_flow_owner(cast("Cluster", West()), settings(), "a", None, findings))

    assert findings.problems == []
    printed = capsys.readouterr().out
    assert ("note  The flow from east to west was ended by switchover to-west" in printed) == bool(ended)


@pytest.mark.parametrize(
    ("own", "is_awaited"),
    [(None, True), (replace(CLAIM, left=True), True), (replace(CLAIM, left=True, started="to-east"), False)],
    ids=["never ran", "ran before", "started"],
)
def test_a_reverse_flow_that_waits_for_its_switchover_is_noted(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own: Claim | None,
    *,
    is_awaited: bool,
):
    """The switchover has ended the flow in the opposite direction, and starts this one."""
    opposite = replace(CLAIM, source_alias="west", left=True, ended="to-east", source_cluster_id="b")

    async def newest_claim(*_: object) -> Claim | None:
        return own

    monkeypatch.setattr(check, "_newest_claim", newest_claim)
    findings = Findings()
    asyncio.run(check.check_flow_owner(cast("Cluster", West()), settings(), "a", opposite, findings))

    assert findings.problems == []
    sentence = "note  Switchover to-east has ended the flow from west to east, and has not started the one from east to west"
    assert (sentence in capsys.readouterr().out) == is_awaited
