"""MM2's example of six clusters in one file, on six real ones: from the far end of one place to the far end of another."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied
from tests.integration.kafka.test_topologies import QUICK, RUN_S, copies, example

pytestmark = pytest.mark.more

PLACES = ("west", "east", "north")
SHARED = "dedicated.mode.enable.internal.rest = true\nlisteners = http://127.0.0.1:0\n"
ALIASES = tuple(f"{place}-{number}" for place in PLACES for number in (1, 2))


@pytest.fixture
def six() -> Iterator[dict[str, KafkaCluster]]:
    with ExitStack() as stack, ThreadPoolExecutor() as starting:
        started = starting.map(KafkaCluster.__enter__, [KafkaCluster(name=alias) for alias in ALIASES])
        clusters = dict(zip(ALIASES, started, strict=True))
        for cluster in clusters.values():
            stack.push(cluster.__exit__)
        yield clusters


def ends(cluster: KafkaCluster) -> dict[str, int]:
    """Where each topic ends, internal ones too, but for offset syncs: those are on the source, as MM2 has it."""
    topics = [topic for topic in cluster.topics() if not topic.startswith("mm2-offset-syncs.")]
    return {topic: sum(cluster.end_offsets(topic).values()) for topic in topics}


def test_six_clusters_of_one_file(six: dict[str, KafkaCluster], tmp_path: Path) -> None:
    """A topic of each far end arrives at the others' by every way once, and nothing comes back to where it has been.

    By one process for all, and then by one in each place with `--clusters`, as MM2's README has it.
    """
    for alias, cluster in six.items():
        load(cluster, cluster.create_topic(f"of-{alias}"), 100)
    way = {
        (f"{there}-2", f"{there}-1.{here}-1.{here}-2.of-{here}-2")
        for here in PLACES
        for there in PLACES
        if here != there
    }
    with Replicator(form="mm2", files=(example("six-clusters", six) + QUICK,), folder=tmp_path) as all_twelve:
        for end, copy in sorted(way):
            all_twelve.wait_for_copy(six[end], copy, 100)
        # What comes by the longer way, over the third place, is another copy; it ends there.
        wait_until(
            "the longer ways are gone, too",
            lambda: all(len(copies(six[f"{place}-2"])) == 10 for place in PLACES),
            timeout_s=RUN_S,
        )
        assert all_twelve.stop() == 0

    # The same file in each place, for the clusters of that place alone: all that a process writes stays there.
    for alias, cluster in six.items():
        load(cluster, f"of-{alias}", 50)
    text = example("six-clusters", six) + QUICK + SHARED
    before = {alias: ends(cluster) for alias, cluster in six.items()}
    with ExitStack() as stack:
        processes = {
            place: Replicator(form="mm2", files=(text,), folder=tmp_path, name=place) for place in PLACES
        }
        for place, process in processes.items():
            process.arguments = ("--clusters", *(alias for alias in ALIASES if alias.startswith(place)))
            stack.enter_context(process)
            if (
                place == PLACES[0]
            ):  # alone, it copies to both of its clusters, and leaves nothing in any other
                process.wait_for_copy(six[f"{place}-1"], f"{place}-2.of-{place}-2", 150)
                for other in PLACES[1:]:
                    process.wait_for_copy(six[f"{place}-2"], f"{place}-1.{other}-1.of-{other}-1", 150)
                elsewhere = [alias for alias in ALIASES if not alias.startswith(place)]
                assert {alias: before[alias] for alias in elsewhere} == {
                    alias: ends(six[alias]) for alias in elsewhere
                }
        for end, copy in sorted(way):
            processes[end.rpartition("-")[0]].wait_for_copy(six[end], copy, 150)
        for place, process in processes.items():
            targets = {name.partition(".")[0].partition("->")[2] for name in process.rest("/connectors")[1]}
            assert {alias for alias in ALIASES if alias.startswith(place)} == targets
            assert process.stop() == 0

    for end, copy in way:
        start = copy.split(".")[2]
        assert_copied(six[start], f"of-{start}", six[end], copy, count=150)
    for alias, cluster in six.items():
        assert [] == [name for name in copies(cluster) if alias in name.split(".")[:-1]]
