"""Defines the observed state of one MirrorPair and its Switchovers, from which their statuses are computed.

Pairs are reconciled together with their Switchovers, because of these at most one is under way. Times are seconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mirrorflow_operator.api.mirror_pair import MirrorPair
from mirrorflow_operator.api.pair_status import PairStatus, SwitchoverStatus
from mirrorflow_operator.api.switchover import Switchover
from mirrorflow_operator.errors import FieldError
from mirrorflow_operator.status.observation import Resource
from mirrorflow_operator.status.pair_conditions import PairReason
from mirrorflow_operator.status.switchover_reports import SwitchoverReport

# A request that could not begin in this time is refused: applications are not moved at a moment that no user expects.
BEGIN_WITHIN_S: Final = 300.0
OVERTAKEN: Final = "Overtaken"  # an unplanned switchover was carried out in its place
DEGRADED: Final = (
    "Degraded"  # applications were moved without the source, and both clusters are not reconciled
)
REFUSED: Final = "Refused"
FINAL: Final = frozenset({"Done", "Lifted", "Rehearsed", REFUSED, OVERTAKEN})
# No process carries it out; a degraded one is recorded as Done later.
ENDED: Final = FINAL | {DEGRADED}
# From here on a switchover can only be completed.
PROMOTED: Final = frozenset({"Promoting", "Reversing", DEGRADED, "Done"})


class PairKey(NamedTuple):
    """Identifies a pair in the work queue, where keys of flows have two members."""

    namespace: str
    name: str
    kind: str = "MirrorPair"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResource:
    """A MirrorPair as stored in the cluster; `pair` is None where its spec is invalid, and `errors` say why.

    `flows`: the flow of each member by its alias, also of an invalid spec as far as that names them. A flow that a switchover has started
    or ended must not change for that. `newer_fields`: warnings about fields of a newer CRD.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    flows: Mapping[str, str]
    pair: MirrorPair | None = None
    errors: tuple[FieldError, ...] = ()
    newer_fields: tuple[FieldError, ...] = ()
    status: PairStatus = field(default_factory=PairStatus)

    @property
    def waits_to_be_reconciled(self) -> bool:
        """Whether an unplanned switchover has left the other cluster with records that may never have crossed, by the status."""
        return any(
            condition.reason == PairReason.NOT_RECONCILED.value for condition in self.status.conditions
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverResource:
    """A Switchover as stored in the cluster; `switchover` is None where its spec is invalid, and `errors` say why."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    pair: str
    created_s: float
    is_deleting: bool = False
    switchover: Switchover | None = None
    errors: tuple[FieldError, ...] = ()
    status: SwitchoverStatus = field(default_factory=SwitchoverStatus)

    @property
    def has_ended(self) -> bool:
        """Whether the status records how it ended."""
        return self.status.state in ENDED

    @property
    def is_final(self) -> bool:
        """Whether the status never changes any more."""
        return self.status.state in FINAL

    @property
    def is_unplanned(self) -> bool:
        """Whether it asks for a switchover without the source."""
        return self.switchover is not None and self.switchover.spec.type == "Unplanned"

    @property
    def refuses_writes_since(self) -> str | None:
        """Since when applications cannot write; None where they can.

        An unplanned switchover fences nothing that is lost: its applications cannot write until it has ended.
        """
        status = self.status
        if self.has_ended:
            return None
        if status.writes_refused is not None:
            return status.writes_refused.since if status.writes_refused.milliseconds is None else None
        return status.states[0].entered if self.is_unplanned and status.states else None

    @property
    def seniority(self) -> tuple[float, str]:
        return self.created_s, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSwitchoverJob:
    """The Job of one Switchover, which may be deleted; `report`: the newest one of its pods."""

    name: str
    uid: str
    switchover: str
    request: str | None = None  # what it was created for, as of `request_of`; None: it does not say
    # The digests of the files with objects that are created while it runs (plan/prepared_objects.py), by file.
    prepared: Mapping[str, str] = field(default_factory=dict)
    is_complete: bool = False
    report: SwitchoverReport | None = None
    problem: str | None = None  # why it has no working pod; None where it has one, or no reason is known


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFlowProgress:
    """What the pods of a flow have last reported; None where they have not."""

    lag_s: float | None = None
    groups: int = 0
    groups_failing: int = 0
    read_again_records: int | None = None  # by all groups, at most
    checkpoint_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairObservation:
    """Everything known about a pair at `now_s`."""

    key: PairKey
    now_s: float
    pair: PairResource | None = None  # None: there is none
    switchovers: tuple[SwitchoverResource, ...] = ()  # oldest first
    jobs: Mapping[str, ObservedSwitchoverJob] = field(default_factory=dict)  # by the name of the Switchover
    flows: Mapping[str, Resource] = field(default_factory=dict)  # those of the namespace that the pair names
    progress: Mapping[str, PairFlowProgress] = field(default_factory=dict)  # by the name of the flow
