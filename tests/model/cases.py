"""What shows each cell of the table "What holds when" in docs/exactly-once.md: scenarios of the model, or tests on real brokers.

A scenario shows "yes" in each column for which `DEVIATIONS` names nothing; its runs may deviate in no other way, and each
deviation is seen in some run (tests/model/test_cases.py, `make model`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.model.judge import (
    ABORTED_BY_COORDINATOR,
    ALLOWANCES,
    COPIED_BEFORE_TAKEN,
    COPIED_BEHIND_A_STRANGER,
    HOLDS,
    IDENTITY_TAKEN,
    LOST,
    LOST_AND_REPORTED,
    MADE_ANEW_IN_FLIGHT,
    NOT_PROTECTED,
    ORDER,
    REPEATED,
    REPEATED_UNPROTECTED,
    STOPPED_BY_FAIL,
    TARGET_MADE_ANEW,
    Allowance,
)

COLUMNS = (LOST, REPEATED, ORDER)
# By scenario, in what its runs deviate from "yes". What is not here deviates in nothing.
DEVIATIONS: dict[str, tuple[Allowance, ...]] = {
    "anything": tuple(one for one in ALLOWANCES if one.column),
    "small_and_forgotten": (ABORTED_BY_COORDINATOR,),
    "old_records_and_any_fault": (ABORTED_BY_COORDINATOR,),
    "settings_change_while_old_records_are_copied": (ABORTED_BY_COORDINATOR,),
    "settings_change_over_a_slow_network": (ABORTED_BY_COORDINATOR,),
    "single_writer_of_old_records_and_late_bytes": (REPEATED_UNPROTECTED, IDENTITY_TAKEN),
    "two_writers_of_old_records": (REPEATED_UNPROTECTED, IDENTITY_TAKEN),
    "source_is_rewritten_while_no_copier_runs": (STOPPED_BY_FAIL,),
    "source_is_rewritten_while_the_copier_is_frozen": (STOPPED_BY_FAIL,),
    "source_is_rewritten_while_it_is_read": (STOPPED_BY_FAIL,),
    "source_has_a_log_of_an_earlier_epoch_again": (STOPPED_BY_FAIL,),
    "source_deletes_what_was_not_copied": (STOPPED_BY_FAIL, LOST_AND_REPORTED),
    "source_topic_is_made_anew": (STOPPED_BY_FAIL,),
    "target_topic_is_made_anew": (TARGET_MADE_ANEW, MADE_ANEW_IN_FLIGHT),
    "stranger_takes_our_number": (IDENTITY_TAKEN,),
    "stranger_takes_our_number_from_a_backlog": (
        IDENTITY_TAKEN,
        COPIED_BEHIND_A_STRANGER,
        COPIED_BEFORE_TAKEN,
    ),
    "stranger_takes_our_number_and_the_policy_is_changed": (
        IDENTITY_TAKEN,
        COPIED_BEHIND_A_STRANGER,
        COPIED_BEFORE_TAKEN,
    ),
}
# Where the first seeds do not show the deviation of a row.
WITNESSES: Mapping[str, range] = {
    "old_records_and_any_fault": range(47, 57),
    "two_writers_of_old_records": range(33, 42),
}
FIRST_SEEDS = range(12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table, by how it begins.

    *tests* are functions of tests on real brokers; *cells* are what they show, or the full text of a cell that says more than
    the deviations of *scenarios*.
    """

    begins: str
    scenarios: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    cells: Mapping[str, str] = field(default_factory=dict)

    def shown(self, column: str) -> str:
        """What the cell in *column* may say."""
        return self.cells.get(column, self.modelled(column))

    def modelled(self, column: str) -> str:
        """What the scenarios show of *column*; the worst of it."""
        seen = {one.cell for one in self.deviations if one.column == column}
        return NOT_PROTECTED if NOT_PROTECTED in seen else next(iter(sorted(seen)), HOLDS)

    @property
    def deviations(self) -> list[Allowance]:
        return [one for name in self.scenarios for one in DEVIATIONS.get(name, ())]


ROWS = (
    Row(
        begins="kill -9 of the replicator, of a task",
        scenarios=("one_copier_and_any_fault", "two_copiers_and_any_fault", "change_of_age_with_a_kill"),
    ),
    Row(
        begins="kill -9 during a first copy",
        scenarios=(
            "killed_in_a_long_first_copy",
            "compacted_target_is_cleaned_before_the_restart",
            "compacted_source_keeps_empty_batches",
            "source_is_cleaned_while_a_restart_reads_it",
        ),
        cells={REPEATED: "yes, except [twins](#what-is-not-protected)"},
    ),
    Row(
        begins="the replicator is frozen for minutes",
        scenarios=("two_copiers_and_any_fault", "forgotten_identity_and_late_bytes"),
    ),
    Row(begins="two replicators of one flow; records of any age", scenarios=("change_of_age",)),
    Row(
        begins="old records, and every copier dead or frozen for more than a minute",
        scenarios=("old_records_and_any_fault", "small_and_old"),
    ),
    Row(
        begins="settings change while copiers run, with the ACL",
        scenarios=("settings_roll_with_a_transactional_id",),
    ),
    Row(
        begins="the same while old records are copied",
        scenarios=("settings_change_while_old_records_are_copied", "settings_change_over_a_slow_network"),
    ),
    Row(
        begins="settings change while copiers run, without that ACL",
        scenarios=(
            "settings_roll_without_a_transactional_id",
            "transactional_id_expires_before_the_settings_change",
            "settings_roll_after_the_transactional_id_has_expired",
        ),
    ),
    Row(
        begins="no ACL for the transactional id: one replicator, records of any age",
        scenarios=("single_writer_of_old_records",),
        tests=("test_old_records_are_copied_once_by_a_single_writer",),
    ),
    Row(
        begins="the same, killed (-9) with bytes on the way",
        scenarios=("single_writer_of_old_records_and_late_bytes",),
    ),
    Row(
        begins="no ACL for the transactional id: two replicators at once",
        scenarios=("two_writers_of_old_records",),
        cells={LOST: NOT_PROTECTED},  # no loss was seen, and none is ruled out
    ),
    Row(
        begins="the target lost its tail",
        scenarios=("target_loses_its_tail", "others_write_where_the_target_lost_its_tail"),
        cells={LOST: "yes: refilled from a stored offset, as far as the source still has it"},
    ),
    Row(
        begins="the source's log was truncated",
        scenarios=(
            "source_is_rewritten_while_no_copier_runs",
            "source_is_rewritten_while_the_copier_is_frozen",
            "source_is_rewritten_while_it_is_read",
            "source_has_a_log_of_an_earlier_epoch_again",
        ),
    ),
    Row(begins="source records were deleted", scenarios=("source_deletes_what_was_not_copied",)),
    Row(
        begins="the target replaces timestamps",
        scenarios=(
            "target_stamps_records_of_a_source_with_gaps",
            "target_stamps_records",
            "target_recompresses",
        ),
    ),
    Row(
        begins="another producer uses the flow's producer id with a low epoch",
        scenarios=("strangers_of_lower_epochs",),
    ),
    Row(
        begins="another producer uses the flow's producer id, epoch",
        scenarios=(
            "stranger_takes_our_number",
            "stranger_takes_our_number_from_a_backlog",
            "stranger_takes_our_number_and_the_policy_is_changed",
        ),
        cells={
            LOST: "by loss policy (`IdentityTaken`), [not in every case](#what-is-not-protected)",
            REPEATED: "except [what was in flight](#what-is-not-protected), with `alert`",
            ORDER: "except [what was in flight](#what-is-not-protected), with `alert` or `restart`",
        },
    ),
    Row(
        begins="Java MM2 and MirrorFlow in one group",
        tests=("test_both_share_a_flow_and_either_leads",),
        cells={LOST: "yes", REPEATED: "since the last position, after a kill", ORDER: "yes"},
    ),
    Row(
        begins="Java MM2 and MirrorFlow otherwise on one partition",
        cells={LOST: NOT_PROTECTED, REPEATED: NOT_PROTECTED, ORDER: "no"},
    ),
    Row(
        begins="Java MM2, then MirrorFlow, or the other way round, each stopped cleanly",
        tests=("test_java_and_we_take_turns_three_times",),
        cells={LOST: "yes", REPEATED: "yes", ORDER: "yes"},
    ),
    Row(
        begins="either of them killed (-9), then the other",
        tests=(
            "test_java_after_our_kill_copies_again_what_came_after_our_position",
            "test_we_after_javas_kill_copy_again_what_came_after_its_position",
        ),
        cells={LOST: "yes", REPEATED: "except what came after the last stored offset", ORDER: "yes"},
    ),
)


def undeclared(scenario: str, allowed: Iterable[Allowance]) -> set[str]:
    """The names of those deviations that `DEVIATIONS` does not have for *scenario*: the table may claim too much."""
    return {one.name for one in allowed if one.column} - {one.name for one in DEVIATIONS.get(scenario, ())}
