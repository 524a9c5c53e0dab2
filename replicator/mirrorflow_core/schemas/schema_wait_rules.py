"""Decides which records wait for their schemas, how long they wait, and when their ids are asked for.

A record waits for an id that the target's registry lacks, and that a subject of the source has which is copied. It does not wait for
an id that no registry knows, or whose subjects are not copied. A partition waits no longer than its limit.

No I/O: `copy.schema_wait` asks the registries and holds the partitions.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mirrorflow_core.schemas.registry_contents import SubjectName
from mirrorflow_core.schemas.subject_mapping import RESERVED_SUBJECT, SubjectMapping

ASK_TIMEOUT_S: Final = 5.0  # for all ids that are asked for at once; shorter near the end of the limit
ASK_TIMEOUT_MIN_S: Final = 0.05
# An instance of a registry may learn of a schema later than the one that has registered it.
UNKNOWN_ASKED: Final = 2
# A registry that has not answered within the limit is asked for a moment, with records held, and then only some time later.
PROBE_S: Final = 2.0


class FetchDecision(Enum):
    """What happens to records that were fetched."""

    COPY = "copy"
    COPY_UNSEEN = "copy unseen"  # they have waited for as long as they may
    HOLD = "hold"


def decide_fetched(
    lacking: Collection[int], *, waited_s: float, limit_s: float, may_ask: bool
) -> FetchDecision:
    """Returns what happens to records with the ids *lacking*, which were not seen on the target; they were held for *waited_s* before.

    *may_ask* is False while registries that do not answer are not asked.
    """
    if not lacking or not may_ask:
        return FetchDecision.COPY
    return FetchDecision.HOLD if waited_s < limit_s else FetchDecision.COPY_UNSEEN


def wait_limit_s(longest_s: float, *, is_answering: bool) -> float:
    """Returns how long a partition waits: *longest_s*, but only a moment if the registries did not answer before."""
    return longest_s if is_answering else min(PROBE_S, longest_s)


def ask_timeout_s(limit_s: float, waited_s: float) -> float:
    """Returns how long registries may take: no longer than a partition that has waited for *waited_s* may still wait."""
    return round(max(ASK_TIMEOUT_MIN_S, min(ASK_TIMEOUT_S, limit_s - waited_s)), 2)


class SchemaLookup(Enum):
    """Where one context of both registries has a schema id."""

    ON_TARGET = "on the target"
    TO_BE_COPIED = "to be copied"  # only the source has it, in a subject that is copied
    NOT_COPIED = "not copied"  # only the source has it, in subjects that are not copied
    UNKNOWN = "unknown"  # neither has it


def is_copied(copies: Iterable[SubjectName]) -> bool:
    """Returns whether the target has a schema, whose id its subjects *copies* have. A placeholder only keeps an id from other uses."""
    return any(subject.name != RESERVED_SUBJECT for subject in copies)


def lookup_on_source(originals: Collection[SubjectName], mapping: SubjectMapping) -> SchemaLookup:
    """Returns where a schema is that the target lacks; *originals* are its subjects on the source. Raises InvalidSettingError."""
    if not originals:
        return SchemaLookup.UNKNOWN
    return SchemaLookup.TO_BE_COPIED if mapping.selected(originals) else SchemaLookup.NOT_COPIED


def must_wait(lookups: Collection[SchemaLookup], *, times_asked: int) -> bool:
    """Returns whether records wait on for an id with these *lookups*, one for each context, the *times_asked*-th time."""
    if SchemaLookup.TO_BE_COPIED in lookups:
        return True
    is_unknown = all(lookup is SchemaLookup.UNKNOWN for lookup in lookups)
    return is_unknown and times_asked < UNKNOWN_ASKED


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOutcome:
    """What one ask for several ids has shown. *problem*: why some have no response; None: all have one."""

    without_response: tuple[int, ...] = ()  # in the order of the next ask
    problem: str | None = None
    has_response: bool = True  # for any id


def ask_outcome(problems: Mapping[int, str | None]) -> AskOutcome:
    """Returns the outcome of an ask for the ids in *problems*, which says why an id has no response; None: it has one."""
    failed = {schema_id: problem for schema_id, problem in problems.items() if problem is not None}
    return AskOutcome(
        without_response=tuple(failed),
        problem=next(iter(failed.values()), None),
        has_response=len(failed) < len(problems),
    )


def ask_order(ids: Collection[int], without_response: Iterable[int]) -> tuple[int, ...]:
    """Returns *ids* in the order to ask for them: first those that a slow registry has not answered."""
    earlier = [schema_id for schema_id in without_response if schema_id in ids]
    return (*earlier, *sorted(set(ids).difference(earlier)))
