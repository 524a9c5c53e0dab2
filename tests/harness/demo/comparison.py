"""Compares both sides of a flow partition by partition, as a Java consumer reads them."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import digest

DIGITS_SHOWN = 12  # of 64 characters; the comparison uses all of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A partition on both sides, with the number of records and the SHA-256 over keys, values, headers and timestamps
    in order.
    """

    topic: str
    partition: int
    source: tuple[int, str]
    target: tuple[int, str]

    @property
    def equal(self) -> bool:
        """Returns whether both sides have the same records in the same order."""
        return self.source == self.target


def compare(east: KafkaCluster, west: KafkaCluster, topics: Mapping[str, str]) -> list[Row]:
    """Returns a row for each partition of *topics* (name on the source -> name on the target)."""
    rows = []
    for source, target in topics.items():
        source_digests, target_digests = digest(east, source), digest(west, target)
        rows += [
            Row(
                topic=source,
                partition=partition,
                source=source_digests.get(partition, (0, "")),
                target=target_digests.get(partition, (0, "")),
            )
            for partition in sorted(source_digests.keys() | target_digests.keys())
        ]
    return rows


def as_text(rows: list[Row]) -> str:
    """Returns a table with a line for each partition and a line for the sum."""
    head = f"{'topic':<10} {'partition':>9} {'on east':>10} {'on west':>10}  digest on east  digest on west"
    lines = [
        f"{row.topic:<10} {row.partition:>9} {row.source[0]:>10,} {row.target[0]:>10,}"
        f"  {row.source[1][:DIGITS_SHOWN]:<14}  {row.target[1][:DIGITS_SHOWN]:<14}"
        f"  {'equal' if row.equal else 'DIFFERENT'}"
        for row in rows
    ]
    total = (
        f"{'all':<10} {len(rows):>9} {sum(row.source[0] for row in rows):>10,}"
        f" {sum(row.target[0] for row in rows):>10,}"
    )
    return "\n".join([head, *lines, total])


def verdict(rows: list[Row], acknowledged: int) -> tuple[bool, str]:
    """Returns whether west has every record that east acknowledged, and a sentence with the result."""
    copied = sum(row.target[0] for row in rows)
    if all(row.equal for row in rows) and copied == acknowledged:
        return True, (
            f"Equal: each of the {acknowledged:,} records that east acknowledged is on west once, in order, with its"
            " key, value, headers and timestamp."
        )
    return (
        False,
        f"NOT EQUAL: east acknowledged {acknowledged:,} records, west has {copied:,}. This is a bug.",
    )
