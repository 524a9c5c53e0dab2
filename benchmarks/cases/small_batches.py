"""A backlog of 200-byte records, each in its own batch."""

from benchmarks import copiers
from benchmarks.arena import Arena
from benchmarks.cases import Case, Extent
from benchmarks.race import CPU, THROUGHPUT, race
from benchmarks.results import Result

PARTITIONS = 4
RECORD_BYTES = 200


def small_batches(arena: Arena, extent: Extent) -> Result:
    records = extent.of(1_000_000, 200_000)
    result = Result(
        name="small-batches",
        title="200-byte records in single-record batches",
        setting=f"A backlog of {records:,} records, {PARTITIONS} partitions, uncompressed. MB and GB are of record values.",
    )
    arena.load("small", records, partitions=PARTITIONS, size_bytes=RECORD_BYTES, single_record_batches=True)
    race(
        arena,
        result,
        [copiers.mirrorflow(), copiers.mm2(), copiers.tuned_mm2()],
        "small",
        partitions=PARTITIONS,
        records=records,
        record_bytes=RECORD_BYTES,
        repeat=extent.repeat,
    )
    for peer in ("MM2", "MM2 tuned"):
        result.demand_ratio(
            f"throughput against {peer}", THROUGHPUT, "MirrorFlow", peer, sense=">=", limit=1.5
        )
        result.demand_ratio(f"CPU per GB against {peer}", CPU, "MirrorFlow", peer, sense="<=", limit=1 / 2)
    return result


CASES: dict[str, Case] = {"small-batches": small_batches}
