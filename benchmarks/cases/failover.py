"""The number of records that a group reads again on the target after the source is lost, by the group's lag."""

import time

from benchmarks import copiers
from benchmarks.arena import FAILURES, Arena
from benchmarks.cases import Case, Extent
from benchmarks.copiers import Copier, Flow
from benchmarks.results import Result
from benchmarks.watch import until_copied
from tests.harness.kafka.processes import Child, HarnessError
from tests.harness.kafka.tools import load
from tests.integration.kafka.groups import group_offsets, put_group

BEHIND = (10, 10_000, 1_000_000)
TRANSACTION_RECORDS = 100
# MM2's last offset sync follows its flush of offsets, a minute after the last record; then a checkpoint follows.
SETTLED_S = 75.0
LIMIT_S = 300.0
POLL_S = 2.0
# A marker follows each hundredth record, so a lag of a million records has 10,000 offsets without record; 5 % of these may count.
TRANSACTIONS_LIMIT = 500.0


def failover(arena: Arena, extent: Extent) -> Result:
    records = extent.of(1_200_000, 1_100_000)
    result = Result(
        name="failover-repeats",
        title="records read again after a failover",
        setting=f"Two topics of one partition and {records:,} records each, copied from the first; one was written by a"
        f" transactional producer, {TRANSACTION_RECORDS} records a transaction. Groups stand so many records before the end,"
        f" and are moved on on the target every second; what counts is where they stand {SETTLED_S:g} s after the last change.",
    )
    topics = {"": "failover-plain", ", transactions": "failover-transactions"}
    for suffix, topic in topics.items():
        more = {"transactional_id": topic, "transaction_records": TRANSACTION_RECORDS} if suffix else {}
        arena.make(topic, 1)
        load(arena.east, topic, records, batch_bytes=65_536, **more)  # type: ignore[arg-type]
    for turn in range(extent.repeat):
        groups = {behind: f"behind-{behind}-{turn}-{time.time_ns()}" for behind in BEHIND}
        for behind, group in groups.items():
            before = records - behind  # records that the group has read
            marked = before + before // TRANSACTION_RECORDS
            offsets = {(topics[""], 0): before, (topics[", transactions"], 0): marked}
            put_group(arena.east, group, offsets)
        names = ",".join(groups.values())
        for copier in (copiers.mirrorflow(groups=names), copiers.mm2(groups=names)):
            flow = arena.flow("failover-.*")
            try:
                _measure(arena, result, copier, flow, groups, topics, records)
            except FAILURES as error:
                result.notes.append(f"{copier.name} failed in run {turn + 1}: {str(error)[:600]}")
    for suffix in topics:
        for behind in BEHIND:
            limit = (
                TRANSACTIONS_LIMIT
                if suffix and behind == BEHIND[-1]
                else TRANSACTIONS_LIMIT / 100
                if suffix
                else 0.0
            )
            what = f"{behind:,} behind{suffix}"
            result.demand(what, what, "MirrorFlow", sense="<=", limit=limit, unit="records")
    return result


def _measure(
    arena: Arena,
    result: Result,
    copier: Copier,
    flow: Flow,
    groups: dict[int, str],
    topics: dict[str, str],
    records: int,
) -> None:
    with arena.running(copier, flow) as child:
        for topic in topics.values():
            until_copied(arena.west, flow.remote(topic), 1, child, least=records, wait_s=LIMIT_S)
        offsets = _settled(arena, child, list(groups.values()))
        for suffix, topic in topics.items():
            for behind, group in groups.items():
                stands = offsets[group].get((flow.remote(topic), 0))
                if stands is None:
                    result.notes.append(
                        f"{copier.name}: the group {behind:,} behind has no offset in {topic} and would begin at its first record."
                    )
                again = records - behind - (stands or 0)
                result.add(copier.name, **{f"{behind:,} behind{suffix}": float(again)})
    # The next copier must not find these offsets.
    for group in groups.values():
        arena.west.admin.delete_consumer_groups([group])[group].result(LIMIT_S)


Offsets = dict[tuple[str, int], int]


def _settled(arena: Arena, child: Child, groups: list[str]) -> dict[str, Offsets]:
    """Returns the offsets of the groups on the target once they have not changed for SETTLED_S."""
    began = changed = time.monotonic()
    offsets: dict[str, Offsets] = {}
    while time.monotonic() - changed < SETTLED_S:
        if not child.running or time.monotonic() - began > LIMIT_S:
            raise HarnessError(f"the groups' offsets on the target kept changing: {offsets}")
        now = {group: group_offsets(arena.west, group) for group in groups}
        if now != offsets:
            offsets, changed = now, time.monotonic()
        time.sleep(POLL_S)
    return offsets


CASES: dict[str, Case] = {"failover-repeats": failover}
