"""The explored worlds. Each has few faults, so that all of its states can be reached in seconds."""

from dataclasses import dataclass, replace
from typing import Any, Final

from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from tests.model.switchover.events import (
    BYPASS,
    CRASH,
    EARLY,
    FOREIGN,
    GIVE_UP,
    GIVE_UP_BESIDE,
    LIMIT,
    REVERT,
    ROLLBACK,
    SLEEP,
    SOURCE_DOWN,
    TAKEOVER,
    TARGET_DOWN,
    TOO_SOON,
    UNFENCE,
)
from tests.model.switchover.world import (
    EAST,
    PARTITIONS,
    WEST,
    Producer,
    Reverse,
    World,
    kept_record,
    requested,
)

PLANNED: Final = kept_record(requested())
REHEARSAL: Final = kept_record(requested(type_=SwitchoverType.REHEARSAL))
SECOND: Final = kept_record(requested("second"))
BACK: Final = kept_record(requested("back", source=WEST, to=EAST))
RESTORE: Final = kept_record(requested(type_=SwitchoverType.RESTORE))
RESTORE_BACK: Final = kept_record(requested("restore", type_=SwitchoverType.RESTORE, source=WEST, to=EAST))
UNPLANNED: Final = kept_record(requested(type_=SwitchoverType.UNPLANNED, accepts_loss=True))
UNPLANNED_SECOND: Final = kept_record(requested("second", type_=SwitchoverType.UNPLANNED, accepts_loss=True))
UNACCEPTED: Final = kept_record(requested(type_=SwitchoverType.UNPLANNED))
UNACCEPTED_SECOND: Final = kept_record(requested("second", type_=SwitchoverType.UNPLANNED))
IDLE: Final = (Producer(0), Producer(0))
TRANSACTION: Final = (Producer(0), Producer(1))
BOTH: Final = (Producer(1), Producer(1))
NOTHING_TO_COPY: Final[dict[str, Any]] = {"producers": IDLE, "target": (("east 0",), ()), "copied": (1, 0)}
_S = SwitchoverState
_DONE = {_S.DONE}
_DONE_OR_LIFTED = {_S.DONE, _S.LIFTED}
_DEGRADED = {_S.DEGRADED}
_DEGRADED_OR_DONE = {_S.DEGRADED, _S.DONE}
_ANY_UNPLANNED_END = {_S.DEGRADED, _S.LIFTED, _S.REFUSED}
_ANY_END = {_S.DONE, _S.LIFTED, _S.REFUSED}


def restorable(*troubles: str) -> World:
    """Returns a world after an unplanned switchover to west whose clusters are reconciled. The flow from west runs.

    East, which was lost, is still fenced, and has every record of the first partition.
    """
    unplanned = requested("lost", type_=SwitchoverType.UNPLANNED, accepts_loss=True)
    ended = replace(unplanned, state=SwitchoverState.DEGRADED, epoch=2).reconciled(0)
    journal = (kept_record(ended),)
    return World(
        (RESTORE_BACK,),
        troubles,
        source_name=WEST,
        source=(("east 0",), ()),
        target=(("east 0",), ()),
        copied=(1, 0),
        target_fence=PARTITIONS,
        endpoint=WEST,
        producers=(Producer(1, member=WEST), Producer(0, member=WEST)),
        source_journal=journal,
        target_journal=journal,
        reverse=Reverse(held_by="lost"),
    )


@dataclass(frozen=True)
class Scenario:
    """A world, and the final states that it leads to."""

    name: str
    world: World
    ends: set[SwitchoverState]


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario("planned", World((PLANNED,), producers=BOTH), _DONE),
        Scenario("standby is fenced", World((PLANNED,), target_fence=PARTITIONS), _DONE),
        Scenario("failed check", World((PLANNED,), has_failed_check=True), {_S.REFUSED}),
        Scenario("group", World((PLANNED,), has_members=True), _DONE),
        Scenario("transaction", World((PLANNED,), producers=TRANSACTION), _DONE),
        Scenario(
            "hanging transaction",
            World((PLANNED,), (LIMIT, LIMIT), producers=TRANSACTION, hangs=True),
            _ANY_END,
        ),
        Scenario("crash", World((PLANNED,), (CRASH,)), _DONE),
        Scenario("the same twice", World((PLANNED, PLANNED), **NOTHING_TO_COPY), _DONE),
        Scenario("two at once", World((PLANNED, SECOND), **NOTHING_TO_COPY), _DONE),
        Scenario(
            "there and back",
            World((PLANNED,), to_return=(BACK,), producers=(Producer(2), Producer(0))),
            _DONE,
        ),
        Scenario(
            "a cluster is down on the way",
            World((PLANNED,), (SOURCE_DOWN,), to_return=(BACK,), **NOTHING_TO_COPY),
            _DONE,
        ),
        Scenario("reverse flow is started early", World((PLANNED,), (EARLY,), producers=IDLE), _ANY_END),
        Scenario(
            "reverse flow is started early, and rolled back",
            World((PLANNED,), (EARLY, ROLLBACK), producers=IDLE),
            _ANY_END,
        ),
        Scenario(
            "reverse flow is started early in a rehearsal",
            World((REHEARSAL,), (EARLY,), producers=IDLE),
            {_S.REHEARSED, _S.LIFTED, _S.REFUSED},
        ),
        Scenario(
            "reverse flow is started early on the way back",
            World((PLANNED,), (EARLY,), to_return=(BACK,), **NOTHING_TO_COPY),
            _ANY_END,
        ),
        Scenario("reverted endpoint", World((PLANNED, SECOND), (REVERT,), **NOTHING_TO_COPY), _DONE),
        Scenario("sleeping copier", World((PLANNED,), (SLEEP, BYPASS), producers=IDLE), _DONE_OR_LIFTED),
        Scenario("takeover", World((PLANNED,), (TAKEOVER, SLEEP)), _DONE),
        Scenario("slow reads", World((PLANNED,), reads_slowly=True), _DONE),
        Scenario("bypass", World((PLANNED,), (BYPASS,)), _DONE_OR_LIFTED),
        Scenario("foreign record", World((PLANNED,), (FOREIGN,)), _DONE_OR_LIFTED),
        Scenario(
            "foreign record after a crash",
            World((PLANNED,), (FOREIGN, CRASH), producers=IDLE),
            _DONE_OR_LIFTED,
        ),
        Scenario("fence removed", World((PLANNED,), (UNFENCE,)), _DONE_OR_LIFTED),
        Scenario("limit", World((PLANNED,), (LIMIT,)), _ANY_END),
        Scenario("rollback", World((PLANNED,), (ROLLBACK,)), _ANY_END),
        Scenario("source down", World((PLANNED,), (SOURCE_DOWN,)), _DONE),
        Scenario(
            "target lost",
            World((PLANNED,), (TARGET_DOWN, LIMIT, LIMIT), is_target_lost=True, **NOTHING_TO_COPY),
            _ANY_END,
        ),
        Scenario(
            "target lost, and rolled back without it",
            World((PLANNED,), (TARGET_DOWN, GIVE_UP), is_target_lost=True, **NOTHING_TO_COPY),
            _DONE,
        ),
        Scenario(
            "target down, and rolled back without it",
            World((PLANNED,), (TARGET_DOWN, CRASH, GIVE_UP), **NOTHING_TO_COPY),
            _DONE_OR_LIFTED,
        ),
        Scenario(
            "crash while the target is down",
            World((PLANNED,), (CRASH, TARGET_DOWN), **NOTHING_TO_COPY),
            _DONE,
        ),
        Scenario("target down", World((PLANNED,), (TARGET_DOWN,)), _DONE),
        Scenario(
            "target down and bypass",
            World((PLANNED,), (TARGET_DOWN, BYPASS), **NOTHING_TO_COPY),
            _DONE_OR_LIFTED,
        ),
        Scenario(
            "source lost after a crash",
            World((PLANNED,), (SOURCE_DOWN, CRASH), is_source_lost=True, **NOTHING_TO_COPY),
            _DONE,
        ),
        Scenario("rehearsal", World((REHEARSAL,)), {_S.REHEARSED}),
        Scenario("rehearsal twice", World((REHEARSAL, REHEARSAL), **NOTHING_TO_COPY), {_S.REHEARSED}),
        Scenario(
            "rehearsal with trouble",
            World((REHEARSAL,), (ROLLBACK, CRASH), producers=IDLE),
            {_S.REHEARSED, _S.LIFTED, _S.REFUSED},
        ),
        Scenario("unplanned", World((UNPLANNED,)), _DEGRADED),
        Scenario("unplanned, standby is fenced", World((UNPLANNED,), target_fence=PARTITIONS), _DEGRADED),
        Scenario("unplanned, source down", World((UNPLANNED,), (SOURCE_DOWN,), producers=IDLE), _DEGRADED),
        Scenario(
            "unplanned, source lost",
            World((UNPLANNED,), (CRASH,), is_source_up=False, is_source_lost=True),
            _DEGRADED,
        ),
        Scenario(
            "unplanned, source never answers",
            World((UNPLANNED,), is_source_up=False, is_source_lost=True, producers=IDLE),
            _DEGRADED,
        ),
        Scenario(
            "unplanned, source comes back",
            World((UNPLANNED,), (CRASH,), is_source_up=False, producers=IDLE),
            _DEGRADED,
        ),
        Scenario(
            "unplanned, sleeping copier", World((UNPLANNED,), (SLEEP, SOURCE_DOWN), producers=IDLE), _DEGRADED
        ),
        Scenario("unplanned, takeover", World((UNPLANNED,), (TAKEOVER, SLEEP), producers=IDLE), _DEGRADED),
        Scenario("unplanned, target down", World((UNPLANNED,), (TARGET_DOWN,)), _DEGRADED),
        Scenario(
            "unplanned, reverse flow is started too soon",
            World((UNPLANNED,), (TOO_SOON, SOURCE_DOWN), producers=IDLE),
            _DEGRADED,
        ),
        Scenario(
            "unplanned, group",
            World((UNPLANNED,), (SOURCE_DOWN,), has_members=True, has_checkpoints=True, producers=IDLE),
            _DEGRADED,
        ),
        Scenario(
            "unplanned, not accepted", World((UNACCEPTED,), (SOURCE_DOWN,), producers=IDLE), {_S.REFUSED}
        ),
        Scenario(
            "unplanned, not to be fenced",
            World((UNPLANNED,), (LIMIT,), refuses_fence=True, producers=IDLE),
            _DEGRADED,
        ),
        Scenario("unplanned, rollback", World((UNPLANNED,), (ROLLBACK,), producers=IDLE), _ANY_UNPLANNED_END),
        Scenario(
            "unplanned, rollback without the source",
            World(
                (UNPLANNED, UNPLANNED_SECOND), (ROLLBACK, SOURCE_DOWN), is_source_lost=True, **NOTHING_TO_COPY
            ),
            _ANY_UNPLANNED_END,
        ),
        Scenario("unplanned twice", World((UNPLANNED, UNPLANNED_SECOND), **NOTHING_TO_COPY), _DEGRADED),
        Scenario("unplanned, then planned", World((UNPLANNED, SECOND), **NOTHING_TO_COPY), _DEGRADED_OR_DONE),
        Scenario(
            "planned, then not accepted",
            World((PLANNED, UNACCEPTED_SECOND), **NOTHING_TO_COPY),
            {_S.DONE, _S.REFUSED},
        ),
        Scenario(
            "planned, then unplanned",
            World((PLANNED, UNPLANNED_SECOND), (SOURCE_DOWN,), is_source_lost=True, **NOTHING_TO_COPY),
            _DEGRADED_OR_DONE,
        ),
        Scenario(
            "restore without a move", World((RESTORE,), has_refused_request=True, **NOTHING_TO_COPY), set()
        ),
        Scenario(
            "restore after a planned move",
            World((PLANNED,), to_return=(RESTORE_BACK,), has_refused_request=True, **NOTHING_TO_COPY),
            _DONE,
        ),
        Scenario("restore", restorable(), _DONE),
        Scenario("restore, crash", restorable(CRASH), _DONE),
        Scenario("restore, rollback", restorable(ROLLBACK), _ANY_END),
        Scenario("restore, bypass", restorable(BYPASS), _DONE_OR_LIFTED),
    )
}
# These scenarios take minutes.
LARGE_SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario("two crashes", World((PLANNED,), (CRASH, CRASH)), _DONE),
        Scenario("crash and rollback", World((PLANNED,), (CRASH, ROLLBACK)), _ANY_END),
        Scenario(
            "crash, limit and transaction", World((PLANNED,), (CRASH, LIMIT), producers=TRANSACTION), _ANY_END
        ),
        Scenario(
            "slow reads and bypass",
            World((PLANNED,), (BYPASS, TAKEOVER, SLEEP), reads_slowly=True),
            _DONE_OR_LIFTED,
        ),
        Scenario("slow reads and crash", World((PLANNED,), (CRASH,), reads_slowly=True), _DONE),
        Scenario(
            "slow reads and transaction", World((PLANNED,), producers=TRANSACTION, reads_slowly=True), _DONE
        ),
        Scenario("slow reads of groups", World((PLANNED,), has_members=True, reads_slowly=True), _DONE),
        Scenario("crash, and reverse flow is started early", World((PLANNED,), (EARLY, CRASH)), _ANY_END),
        Scenario(
            "crash and rollback on the way back",
            World((PLANNED,), (EARLY, CRASH, ROLLBACK), to_return=(BACK,), **NOTHING_TO_COPY),
            _ANY_END,
        ),
        Scenario("crash and lost source", World((PLANNED,), (CRASH, SOURCE_DOWN)), _DONE),
        Scenario("crash and lost target", World((PLANNED,), (CRASH, TARGET_DOWN)), _DONE),
        Scenario(
            "target down, and rolled back beside a process that works",
            World((PLANNED,), (TARGET_DOWN, CRASH, GIVE_UP_BESIDE), **NOTHING_TO_COPY),
            _DONE_OR_LIFTED,
        ),
        Scenario("crash and two at once", World((PLANNED, SECOND), (CRASH,)), _DONE),
        Scenario("crash and the same twice", World((PLANNED, PLANNED), (CRASH,), producers=IDLE), _DONE),
        Scenario("crash there or back", World((PLANNED,), (CRASH,), to_return=(BACK,)), _DONE),
        Scenario("two producers and a group", World((PLANNED,), producers=BOTH, has_members=True), _DONE),
        Scenario("takeover and bypass", World((PLANNED,), (TAKEOVER, SLEEP, BYPASS)), _DONE_OR_LIFTED),
        Scenario("crash and removed fence", World((PLANNED,), (CRASH, UNFENCE)), _DONE_OR_LIFTED),
        Scenario("unplanned, slow reads", World((UNPLANNED,), (SOURCE_DOWN,), reads_slowly=True), _DEGRADED),
        Scenario(
            "planned, crash, then unplanned",
            World((PLANNED, UNPLANNED_SECOND), (SOURCE_DOWN, CRASH), is_source_lost=True, **NOTHING_TO_COPY),
            _DEGRADED_OR_DONE,
        ),
        Scenario(
            "rehearsal and planned",
            World((REHEARSAL, SECOND), (CRASH,), producers=IDLE),
            {_S.REHEARSED, _S.DONE},
        ),
    )
}
