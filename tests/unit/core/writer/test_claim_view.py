"""The view of a flow's newest claim after reads that succeed, fail, or find no topic."""

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
        view = view.after_read(newest, missing="It is hidden.")

    assert view.ended_by == ended_by


def test_a_view_names_why_the_last_read_gave_nothing():
    unread = ClaimView(ENDED).after_refusal("Read is missing.")

    assert unread == ClaimView(ENDED, "Read is missing.")
    assert unread.after_read(None, missing="It is hidden.") == ClaimView(ENDED, "It is hidden.")
    assert unread.after_read(OWNED, missing="It is hidden.") == ClaimView(OWNED)


def test_a_topic_without_claims_is_missing_only_where_a_claim_was_read():
    assert ClaimView().after_read(None, missing="It is hidden.") == ClaimView()


@pytest.mark.parametrize("known", [None, OWNED])
def test_without_a_leader_nothing_is_decided_as_the_newest_claim_may_end_the_flow(known: Claim | None):
    assert ClaimView(known).after_no_leader("It has no leader.") is None


def test_a_known_end_of_the_flow_holds_without_a_leader():
    assert ClaimView(ENDED).after_no_leader("It has no leader.") == ClaimView(ENDED, "It has no leader.")
