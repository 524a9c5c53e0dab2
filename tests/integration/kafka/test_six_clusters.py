"""MM2's example of six clusters in one file, on six real clusters.

Records are copied from the last cluster of one site to the last cluster of the next site.
"""

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

SITES = ("west", "east", "north")
SHARED = "dedicated.mode.enable.internal.rest = true\nlisteners = http://127.0.0.1:0\n"
ALIASES = tuple(f"{site}-{number}" for site in SITES for number in (1, 2))


@pytest.fixture
def six() -> Iterator[dict[str, KafkaCluster]]:
    with ExitStack() as stack, ThreadPoolExecutor() as starting:
        started = starting.map(KafkaCluster.__enter__, [KafkaCluster(name=alias) for alias in ALIASES])
        clusters = dict(zip(ALIASES, started, strict=True))
        for cluster in clusters.values():
            stack.push(cluster.__exit__)
        yield clusters


def ends(cluster: KafkaCluster) -> dict[str, int]:
    """Returns the end offset of each topic except offset syncs, which MM2 writes to the source."""
    topics = [topic for topic in cluster.topics() if not topic.startswith("mm2-offset-syncs.")]
    return {topic: sum(cluster.end_offsets(topic).values()) for topic in topics}


def test_six_clusters_of_one_file_copy_each_topic_once_over_every_route(
    six: dict[str, KafkaCluster], tmp_path: Path
) -> None:
    """A topic of each last cluster reaches the others once over every route, and nothing returns to a cluster that has
    it.

    First one process runs all flows, and then one process for each site with `--clusters`, as in MM2's README.
    """
    for alias, cluster in six.items():
        load(cluster, cluster.create_topic(f"of-{alias}"), 100)
    routes = {
        (f"{target_site}-2", f"{target_site}-1.{source_site}-1.{source_site}-2.of-{source_site}-2")
        for source_site in SITES
        for target_site in SITES
        if source_site != target_site
    }
    with Replicator(form="mm2", files=(example("six-clusters", six) + QUICK,), folder=tmp_path) as all_twelve:
        for end, copy in sorted(routes):
            all_twelve.wait_for_copy(six[end], copy, 100)
        # A copy by the longer route, over the third site, is a separate topic and is not copied further.
        wait_until(
            "the copies by the longer routes exist, too",
            lambda: all(len(copies(six[f"{site}-2"])) == 10 for site in SITES),
            timeout_s=RUN_S,
        )
        assert all_twelve.stop() == 0

    # Each site has the same file, but runs only flows to its own clusters. A process writes only to these clusters.
    for alias, cluster in six.items():
        load(cluster, f"of-{alias}", 50)
    text = example("six-clusters", six) + QUICK + SHARED
    before = {alias: ends(cluster) for alias, cluster in six.items()}
    with ExitStack() as stack:
        processes = {
            site: Replicator(form="mm2", files=(text,), folder=tmp_path, name=site) for site in SITES
        }
        for site, process in processes.items():
            process.arguments = ("--clusters", *(alias for alias in ALIASES if alias.startswith(site)))
            stack.enter_context(process)
            if site == SITES[0]:  # the only process so far, which writes only to its two clusters
                process.wait_for_copy(six[f"{site}-1"], f"{site}-2.of-{site}-2", 150)
                for other in SITES[1:]:
                    process.wait_for_copy(six[f"{site}-2"], f"{site}-1.{other}-1.of-{other}-1", 150)
                elsewhere = [alias for alias in ALIASES if not alias.startswith(site)]
                assert {alias: before[alias] for alias in elsewhere} == {
                    alias: ends(six[alias]) for alias in elsewhere
                }
        for end, copy in sorted(routes):
            processes[end.rpartition("-")[0]].wait_for_copy(six[end], copy, 150)
        for site, process in processes.items():
            targets = {name.partition(".")[0].partition("->")[2] for name in process.rest("/connectors")[1]}
            assert {alias for alias in ALIASES if alias.startswith(site)} == targets
            assert process.stop() == 0

    for end, copy in routes:
        start = copy.split(".")[2]
        assert_copied(six[start], f"of-{start}", six[end], copy, count=150)
    for alias, cluster in six.items():
        assert [] == [name for name in copies(cluster) if alias in name.split(".")[:-1]]
