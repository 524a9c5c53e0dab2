"""What is known of a flow's newest claim after reads that succeed, fail, or find no topic."""

import pytest

from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.claim_view import ClaimView

OWNED = Claim(flow="east->west", process="host/1/a", source_alias="east", tasks=1, lock_epoch=0, time_ms=1)
ENDED = Claim(
    flow="east->west", process="host/1/a", source_alias="east", tasks=1, lock_epoch=1, time_ms=2, ended="sw"
)


@pytest.mark.parametrize(
    ("reads", "ended_by"),
    [
        ([], None),
        ([None], None),
        ([OWNED], None),
        ([ENDED], "sw"),
        ([ENDED, OWNED], None),
        ([ENDED, None], "sw"),
        ([None, ENDED], "sw"),
    ],
)
def test_a_claim_stays_known_until_a_newer_one_is_read(reads: list[Claim | None], ended_by: str | None):
    view = ClaimView()
    for newest in reads:
        view = view.after(newest)

    assert view.ended_by == ended_by


def test_a_view_names_why_the_last_read_gave_nothing():
    unread = ClaimView().after(ENDED).after(None, unread="Read is missing.")

    assert (unread.claim, unread.unread) == (ENDED, "Read is missing.")
    assert unread.after(OWNED).unread == ""
