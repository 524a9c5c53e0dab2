"""Writes the Parquet table `windows` with Spark, one row per window, as in `docs/verification.md`."""

from typing import TYPE_CHECKING, Any, Final

from mirrorflow_seed.verify.summary import Verification
from mirrorflow_seed.verify.windows import WindowResult

if TYPE_CHECKING:
    from pyspark import SparkContext

SCHEMA: Final = """
    run_id STRING NOT NULL,
    flow STRING NOT NULL,
    topic STRING NOT NULL,
    partition INT NOT NULL,
    target_topic STRING NOT NULL,
    from_offset BIGINT NOT NULL,
    to_offset BIGINT NOT NULL,
    target_from_offset BIGINT,
    target_to_offset BIGINT,
    source_count BIGINT NOT NULL,
    target_count BIGINT NOT NULL,
    source_sum STRING NOT NULL,
    target_sum STRING NOT NULL,
    source_chain STRING,
    target_chain STRING,
    digested_count BIGINT NOT NULL,
    ordered_equal BOOLEAN,
    outcome STRING NOT NULL,
    differing_count BIGINT NOT NULL,
    key_class INT,
    reason STRING,
    differences ARRAY<STRUCT<kind: STRING, source_offset: BIGINT, target_offset: BIGINT,
        source_digest: STRING, target_digest: STRING>> NOT NULL
"""


def write_windows(context: "SparkContext", path: str, verification: Verification) -> None:
    """Replaces the table at *path*."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 the extra `seed`

    session = SparkSession(context)
    rows = [row(verification.run_id, verification.flow, one) for one in verification.windows]
    # One file: a billion records are 10,000 rows.
    session.createDataFrame(rows, SCHEMA).coalesce(1).write.mode("overwrite").parquet(path)


def row(run_id: str, flow: str, one: WindowResult) -> tuple[Any, ...]:
    """Returns the row of a window, in the order of SCHEMA."""
    return (
        run_id,
        flow,
        one.topic,
        one.partition,
        one.target_topic,
        one.from_offset,
        one.to_offset,
        _known(one.target_from_offset),
        _known(one.target_to_offset),
        one.source_count,
        one.target_count,
        one.source_sum,
        one.target_sum,
        one.source_chain or None,
        one.target_chain or None,
        one.digested,
        one.ordered_equal,
        one.outcome.value,
        one.differing,
        _known(one.key_class),
        one.reason or None,
        [
            (
                each.kind.value,
                _known(each.source_offset),
                _known(each.target_offset),
                each.source_digest or None,
                each.target_digest or None,
            )
            for each in one.differences
        ],
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number
