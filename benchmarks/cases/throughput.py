"""A backlog of 2 GB of 1 kB records in 4 partitions: uncompressed, lz4, zstd."""

from functools import partial

from benchmarks import copiers
from benchmarks.arena import Arena
from benchmarks.cases import Case, Extent
from benchmarks.race import CPU, THROUGHPUT, race
from benchmarks.results import Result

PARTITIONS = 4
RECORD_BYTES = 1000
BATCH_BYTES = 65_536  # between the producer's default of 16 KiB and common settings for bulk loads


def _throughput(codec: str, arena: Arena, extent: Extent) -> Result:
    records = extent.of(2_000_000, 500_000)
    result = Result(
        name=f"throughput-{codec}",
        title=f"a backlog of 1 kB records, compression {codec}",
        setting=f"{records:,} records of {RECORD_BYTES} bytes (JSON text), {PARTITIONS} partitions, a Java producer's batches"
        f" of {BATCH_BYTES // 1024} KiB. MB and GB are of the records before compression.",
    )
    topic = f"throughput-{codec}"
    arena.load(
        topic, records, partitions=PARTITIONS, size_bytes=RECORD_BYTES, codec=codec, batch_bytes=BATCH_BYTES
    )
    competitors = [copiers.mirrorflow(), copiers.tuned_mm2(codec)]
    if codec == "none":
        competitors += [copiers.mm2(), copiers.relay()]
    race(
        arena,
        result,
        competitors,
        topic,
        partitions=PARTITIONS,
        records=records,
        record_bytes=RECORD_BYTES,
        repeat=extent.repeat,
    )
    if codec == "none":
        _demand(result, "MM2", faster=4.5, cheaper=16)
        _demand(result, "MM2 tuned", faster=2.5, cheaper=10)
        result.demand_ratio(
            "throughput against the bare relay", THROUGHPUT, "MirrorFlow", "bare relay", sense=">=", limit=0.8
        )
    else:
        _demand(result, "MM2 tuned", faster=3, cheaper=12)
    return result


def _demand(result: Result, peer: str, *, faster: float, cheaper: float) -> None:
    result.demand_ratio(
        f"throughput against {peer}", THROUGHPUT, "MirrorFlow", peer, sense=">=", limit=faster
    )
    result.demand_ratio(f"CPU per GB against {peer}", CPU, "MirrorFlow", peer, sense="<=", limit=1 / cheaper)


CASES: dict[str, Case] = {
    f"throughput-{codec}": partial(_throughput, codec) for codec in ("none", "lz4", "zstd")
}
