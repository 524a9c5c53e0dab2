"""`mirrorflow run --until-caught-up` between two real clusters: its exit status is an answer that a script may trust."""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.harness.kafka.cluster import KafkaCluster
from tests.integration.kafka.comparing import produce

RUN_S = 120.0  # ten seconds alone, of which a start takes two


def run_until_caught_up(
    source: KafkaCluster, target: KafkaCluster, alias: str, topics: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    addresses = ["--from", source.bootstrap, "--to", target.bootstrap, "--from-alias", alias]
    return subprocess.run(
        [
            Path(sys.executable).parent / "mirrorflow", "run", *addresses, "--topics", topics, "--until-caught-up",
            "--log", folder / "log",
        ],
        capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip


def test_what_could_not_be_created_is_no_success(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Without the topic whose copy would have too long a name it ends with 0, with it with 1 and the sentence."""
    stem, alias = unique_topic(), f"a{uuid.uuid4().hex[:8]}"
    short, long = f"{stem}-short", f"{stem}-long-".ljust(249, "x")
    for topic in (short, long):
        produce(east, east.create_topic(topic), [(0, time.time_ns() // 1_000_000, None, b"value", [])])

    some = run_until_caught_up(east, west, alias, short, tmp_path)
    whole = run_until_caught_up(east, west, alias, f"{stem}-.*", tmp_path)

    assert (0, 1) == (some.returncode, whole.returncode), whole.stderr
    assert f"1 topic is not copied; first: Target topic {alias}.{long} cannot be created" in whole.stderr
    assert {0: 1} == west.end_offsets(f"{alias}.{short}")
