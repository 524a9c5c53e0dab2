"""`mirrorflow check` reports who owns a flow, and what has ended it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_cli import check_owner
from mirrorflow_cli.commands import check
from mirrorflow_cli.output import Findings
from mirrorflow_core.errors import InternalTopicUnavailableError
from mirrorflow_core.settings import PolicyKind, PolicySettings
from mirrorflow_core.writer.claim import Claim
from mirrorflow_kafka.client.cluster import Cluster
from tests.unit.connectors.flow_settings import settings
from tests.unit.connectors.test_flow_takeover import CLAIM


class West:
    """A target cluster; the tests use only its id."""

    cluster_id = CLAIM.target_cluster_id


@pytest.mark.parametrize("ended", ["", "to-west"])
def test_an_ended_flow_is_reported_as_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: str
):
    """The flow can run: its process waits until the end is cleared."""

    async def newest_claim(*_: object) -> Claim:
        return replace(CLAIM, left=True, ended=ended)

    monkeypatch.setattr(check_owner, "_newest_claim", newest_claim)
    findings = Findings()
    asyncio.run(check_owner.check_flow_owner(cast("Cluster", West()), settings(), "a", None, findings))

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

    monkeypatch.setattr(check_owner, "_newest_claim", newest_claim)
    findings = Findings()
    asyncio.run(check_owner.check_flow_owner(cast("Cluster", West()), settings(), "a", opposite, findings))

    assert findings.problems == []
    sentence = "note  Switchover to-east has ended the flow from west to east, and has not started the one from east to west"
    assert (sentence in capsys.readouterr().out) == is_awaited


TOPIC = "mm2-claims.west.internal"
LEADERLESS = InternalTopicUnavailableError(cluster="east", topic=TOPIC, leaderless=0)


def source_checked(monkeypatch: pytest.MonkeyPatch, outcome: object) -> Any:
    """Checks a source where reading the claims of the opposite flow has this *outcome*."""

    async def updated_view(*_: object) -> object:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @contextlib.asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[object]:
        yield SimpleNamespace(cluster_id="a")

    def returning(value: object) -> Any:
        async def call(*_: object) -> object:
            return value

        return call

    values: dict[str, object] = {
        "_check_brokers": None,
        "check_retention": None,
        "check_source": {},
        "sample_topics": (),
        "selected_topics": SimpleNamespace(topics={"orders": 1}),
        "source_acls": ("acl",),
    }
    for name, value in values.items():
        monkeypatch.setattr(check, name, returning(value))
    monkeypatch.setattr(check, "connected", connected)
    monkeypatch.setattr(check, "updated_view", updated_view)
    monkeypatch.setattr(check._FlowCheck, "_check_target", returning(None))
    monkeypatch.setattr(check._FlowCheck, "_check_other_clients", returning(None))
    identity = PolicySettings(kind=PolicyKind.IDENTITY, source_alias="east")
    checked = check._FlowCheck(
        settings=replace(settings(), policy=identity), checkpoint=None, heartbeat=None, findings=Findings()
    )
    asyncio.run(checked.run())
    return checked


def test_claims_of_the_opposite_flow_that_may_not_be_read_are_a_problem(monkeypatch: pytest.MonkeyPatch):
    view = SimpleNamespace(claim=CLAIM, unread=f"Topic {TOPIC} of east is hidden or deleted.")

    checked = source_checked(monkeypatch, view)

    (problem,) = checked.findings.problems
    assert problem == f"Whether a switchover has ended the flow from west to east is unknown: {view.unread}"
    assert checked.opposite == CLAIM


def test_claims_of_the_opposite_flow_without_a_leader_are_a_problem_and_the_other_checks_run(
    monkeypatch: pytest.MonkeyPatch,
):
    checked = source_checked(monkeypatch, LEADERLESS)

    assert checked.findings.problems == [str(LEADERLESS)]
    assert checked.acls == ("acl",)


def test_claims_of_the_opposite_flow_that_are_read_are_no_problem(monkeypatch: pytest.MonkeyPatch):
    assert [] == source_checked(monkeypatch, SimpleNamespace(claim=None, unread=None)).findings.problems
