"""The readiness check of the fence: a fence that refuses the reverse flow would stop the copy to the old side."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.switchover.last_verification import LastVerification
from mirrorflow_core.switchover.observation import ReadinessCheck
from mirrorflow_core.switchover.record import SwitchoverLimits
from mirrorflow_replicator.switchover import readiness
from mirrorflow_replicator.switchover.acl_fence import CanaryTimes
from mirrorflow_replicator.switchover.pair_settings import FenceKind, SwitchoverSettings
from mirrorflow_replicator.switchover.readiness import ReadinessChecks

PROBE = ClientSettings(alias="east", client_id="probe", properties={})


class Anything:
    """A flow, or both clusters."""

    source_alias, target_alias, flow, replication_factor = "east", "west", "west-to-east", 1
    source = probe = None


def checked(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> str:
    """Returns the result of the check with a canary that was written and refused, as it has to be."""

    async def try_fence(*_: Any, **__: Any) -> CanaryTimes:
        return CanaryTimes(refused_after_s=0.03, accepted_after_s=0.03)

    monkeypatch.setattr(readiness, "try_fence", try_fence)
    part = cast("Any", Anything)
    pair = SwitchoverSettings(
        pair="p",
        forward=part,
        forward_groups=None,
        back=part,
        fence=FenceKind.DENY_ACL,
        limits=SwitchoverLimits(),
        **settings,
    )
    checks = ReadinessChecks(pair, part, fence=part, flows=part, partitions=part)
    asyncio.run(checks.try_fence())
    return checks._results[ReadinessCheck.FENCE]


def test_a_fence_that_refuses_the_reverse_flow_fails_the_check(monkeypatch: pytest.MonkeyPatch):
    """The user of the reverse flow writes the canary and is refused, because a DENY for all principals has no exception."""
    assert checked(monkeypatch).startswith(
        "spec.fence.exceptPrincipals: the fence also refuses flow west-to-east"
    )


@pytest.mark.parametrize("settings", [{"except_principals": ("User:mirror",)}, {"probe": PROBE}])
def test_a_fence_with_an_exception_or_a_separate_canary_user_passes_the_check(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    assert "" == checked(monkeypatch, **settings)


def verified(**settings: Any) -> ReadinessChecks:
    """The checks after that of the verification."""
    part = cast("Any", Anything)
    pair = SwitchoverSettings(
        pair="p",
        forward=part,
        forward_groups=None,
        back=part,
        fence=FenceKind.NONE,
        limits=SwitchoverLimits(),
        **settings,
    )
    checks = ReadinessChecks(pair, part, fence=part, flows=part, partitions=part)
    asyncio.run(checks._run(ReadinessCheck.VERIFICATION, checks._verification))
    return checks


def test_the_lag_of_a_flow_that_has_never_run_is_refused_without_a_read():
    """A read of its positions would wait for a minute for the topic."""
    forward = SimpleNamespace(
        source_alias="east",
        target_alias="west",
        flow="east-to-west",
        offsets=SimpleNamespace(topic="offsets"),
    )

    class NeverRun:
        async def has_stored_positions(self) -> bool:
            return False

    pair = SwitchoverSettings(
        pair="p",
        forward=cast("Any", forward),
        forward_groups=None,
        back=cast("Any", Anything),
        fence=FenceKind.NONE,
        limits=SwitchoverLimits(),
    )
    part = cast("Any", Anything)
    checks = ReadinessChecks(pair, part, fence=part, flows=part, partitions=cast("Any", NeverRun()))
    asyncio.run(checks._run(ReadinessCheck.LAG, checks._lag))

    assert "flow east-to-west has never copied: west has no topic offsets" in checks.known[ReadinessCheck.LAG]


def test_a_required_verification_that_is_not_known_fails_the_check():
    checks = verified(verified_within_ms=60_000, verification_source="--verification is not given")

    assert "it is unknown when a verification" in checks.known[ReadinessCheck.VERIFICATION]
    assert {} == checks.not_checked


def test_a_pair_that_requires_no_verification_has_a_check_of_unknown_result():
    checks = verified()

    assert "" == checks.known[ReadinessCheck.VERIFICATION]
    assert "verifiedWithinSeconds is not set" in checks.not_checked[ReadinessCheck.VERIFICATION]


def test_a_recent_equal_verification_passes_the_check():
    last = LastVerification(run="1", ended_ms=time.time_ns() // 1_000_000, is_equal=True)
    checks = verified(verified_within_ms=60_000, last_verification=last)

    assert ("", {}) == (checks.known[ReadinessCheck.VERIFICATION], checks.not_checked)
