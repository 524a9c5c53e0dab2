"""The readiness check of the fence: a fence that refuses the reverse flow would stop the copy to the old side."""

import asyncio
from typing import Any, cast

import pytest

from mirrorflow_core.settings import ClientSettings
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
