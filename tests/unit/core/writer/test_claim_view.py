"""What is known of a flow's newest claim after reads that succeed, fail, or find no topic."""

import pytest

from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.claim_view import ClaimsAccess, ClaimView

OWNED = Claim(flow="east->west", process="host/1/a", source_alias="east", tasks=1, lock_epoch=0, time_ms=1)
ENDED = Claim(
    flow="east->west", process="host/1/a", source_alias="east", tasks=1, lock_epoch=1, time_ms=2, ended="sw"
)
READ, HIDDEN, LEADERLESS = ClaimsAccess.READ, ClaimsAccess.HIDDEN, ClaimsAccess.LEADERLESS


@pytest.mark.parametrize(
    ("reads", "is_known", "ended_by"),
    [
        ([], False, None),
        ([(LEADERLESS, None)], False, None),
        ([(HIDDEN, None)], True, None),
        ([(READ, None)], True, None),
        ([(READ, OWNED)], True, None),
        ([(READ, ENDED)], True, "sw"),
        ([(READ, ENDED), (READ, OWNED)], True, None),
        ([(READ, ENDED), (LEADERLESS, None)], True, "sw"),
        ([(READ, ENDED), (HIDDEN, None)], True, "sw"),
        ([(READ, ENDED), (READ, None)], True, "sw"),
        ([(HIDDEN, None), (LEADERLESS, None)], True, None),
        ([(LEADERLESS, None), (READ, ENDED)], True, "sw"),
    ],
)
def test_a_claim_stays_known_until_a_newer_one_is_read(
    reads: list[tuple[ClaimsAccess, Claim | None]], *, is_known: bool, ended_by: str | None
):
    view = ClaimView()
    for access, newest in reads:
        view = view.after(access, newest)

    assert (view.is_known, view.ended_by) == (is_known, ended_by)
