"""The age of the last verification: only one that found both clusters equal, and not too long ago, allows a switchover."""

import pytest

from mirrorflow_core.switchover.last_verification import (
    LastVerification,
    duration_text,
    why_not_verified,
)

NOW_MS = 1_796_000_000_000
HOUR_MS = 3_600_000


def refused(last: LastVerification | None, within_ms: int | None = 24 * HOUR_MS) -> str:
    return why_not_verified(
        "east-to-west", last, within_ms=within_ms, now_ms=NOW_MS, source="--verification is not given"
    )


def verification(*, hours_ago: float, is_equal: bool = True) -> LastVerification:
    return LastVerification(run="nightly-7", ended_ms=NOW_MS - int(hours_ago * HOUR_MS), is_equal=is_equal)


def test_a_recent_equal_verification_allows_a_switchover():
    assert "" == refused(verification(hours_ago=24))


def test_an_old_verification_is_refused_with_its_name_its_end_and_the_cure():
    assert refused(verification(hours_ago=26)) == (
        "spec.readiness.verifiedWithinSeconds: verification nightly-7 of flow east-to-west ended at 2026-11-28T22:53:20Z, longer than 24 h "
        "ago. Run one (mirrorflow verify, or spec.verify of the flow) and repeat the switchover, or raise the limit."
    )


def test_a_recent_verification_with_differences_is_refused():
    assert (
        "nightly-7 of flow east-to-west ended at 2026-11-30T00:53:20Z and has found differences"
        in refused(verification(hours_ago=0, is_equal=False))
    )


def test_without_a_known_verification_the_reason_is_that_it_is_unknown():
    assert "it is unknown when a verification of flow east-to-west" in refused(None)
    assert "--verification is not given" in refused(None)


@pytest.mark.parametrize(
    "last", [None, verification(hours_ago=1_000), verification(hours_ago=0, is_equal=False)]
)
def test_a_pair_without_the_field_requires_no_verification(last: LastVerification | None):
    assert "" == refused(last, within_ms=None)


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(999, "0 s"), (119_999, "119 s"), (120_000, "2 min"), (86_400_000, "24 h"), (172_800_000, "2 d")],
)
def test_a_duration_is_shown_in_its_largest_unit(duration_ms: int, text: str):
    assert text == duration_text(duration_ms)
