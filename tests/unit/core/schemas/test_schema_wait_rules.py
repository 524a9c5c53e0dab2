"""Which records wait for their schemas, for how long, and in which order ids are looked up."""

import pytest

from mirrorflow_core.schemas.registry_contents import SubjectName
from mirrorflow_core.schemas.schema_wait_rules import (
    ASK_TIMEOUT_MIN_S,
    ASK_TIMEOUT_S,
    PROBE_S,
    UNKNOWN_ASKED,
    AskOutcome,
    FetchDecision,
    SchemaLookup,
    ask_order,
    ask_outcome,
    ask_timeout_s,
    decide_fetched,
    is_copied,
    lookup_on_source,
    must_wait,
    wait_limit_s,
)
from mirrorflow_core.schemas.subject_mapping import RESERVED_SUBJECT, SubjectMapping

ORDERS, PLACEHOLDER = SubjectName(".", "orders-value"), SubjectName(".", RESERVED_SUBJECT)
MAPPING = SubjectMapping(subjects=("orders.*",), contexts={".": "."})


@pytest.mark.parametrize(
    ("lacking", "waited_s", "may_ask", "decision"),
    [
        ([], 0.0, True, FetchDecision.COPY),
        ([7], 0.0, False, FetchDecision.COPY),
        ([7], 0.0, True, FetchDecision.HOLD),
        ([7], 59.0, True, FetchDecision.HOLD),
        ([7], 60.0, True, FetchDecision.COPY_UNSEEN),
    ],
)
def test_records_are_held_for_lacking_schemas_until_their_limit(
    *, lacking: list[int], waited_s: float, may_ask: bool, decision: FetchDecision
):
    assert decision is decide_fetched(lacking, waited_s=waited_s, limit_s=60.0, may_ask=may_ask)


def test_registries_without_a_response_delay_records_only_briefly():
    assert wait_limit_s(60.0, is_answering=True) == 60.0
    assert wait_limit_s(60.0, is_answering=False) == PROBE_S
    assert wait_limit_s(PROBE_S / 2, is_answering=False) == PROBE_S / 2


@pytest.mark.parametrize(
    ("waited_s", "timeout_s"), [(0.0, ASK_TIMEOUT_S), (58.0, 2.0), (60.0, ASK_TIMEOUT_MIN_S)]
)
def test_requests_end_when_a_partition_may_wait_no_longer(waited_s: float, timeout_s: float):
    assert timeout_s == ask_timeout_s(60.0, waited_s)


def test_a_placeholder_on_the_target_is_not_the_schema():
    assert is_copied([PLACEHOLDER, ORDERS])
    assert not is_copied([PLACEHOLDER])


@pytest.mark.parametrize(
    ("originals", "lookup"),
    [
        ([], SchemaLookup.UNKNOWN),
        ([ORDERS], SchemaLookup.TO_BE_COPIED),
        ([SubjectName(".", "other")], SchemaLookup.NOT_COPIED),
    ],
)
def test_a_schema_of_the_source_is_awaited_if_one_of_its_subjects_is_copied(
    originals: list[SubjectName], lookup: SchemaLookup
):
    assert lookup is lookup_on_source(originals, MAPPING)


@pytest.mark.parametrize(
    ("lookups", "times_asked", "waits"),
    [
        ([SchemaLookup.ON_TARGET, SchemaLookup.TO_BE_COPIED], 9, True),
        ([SchemaLookup.ON_TARGET, SchemaLookup.UNKNOWN], 1, False),
        ([SchemaLookup.NOT_COPIED], 1, False),
        ([SchemaLookup.UNKNOWN], UNKNOWN_ASKED - 1, True),
        ([SchemaLookup.UNKNOWN], UNKNOWN_ASKED, False),
    ],
)
def test_records_wait_for_a_schema_that_is_still_to_be_copied(
    *, lookups: list[SchemaLookup], times_asked: int, waits: bool
):
    assert waits is must_wait(lookups, times_asked=times_asked)


def test_the_outcome_has_the_first_problem():
    outcome = ask_outcome({3: "It is late.", 1: None, 2: "It is away."})

    assert AskOutcome(without_response=(3, 2), problem="It is late.", has_response=True) == outcome
    assert not ask_outcome({3: "It is late."}).has_response
    assert ask_outcome({3: None}) == AskOutcome()


def test_ids_without_a_response_are_requested_first():
    assert ask_order({1, 2, 3, 4}, (3, 9)) == (3, 1, 2, 4)
