"""Several processes with one mm2.properties, which has the addresses of their internal requests."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from mirrorflow_core.java.properties import format_properties
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator
from tests.integration.kafka.distributed import Site
from tests.integration.kafka.nodes import wait_until_shared

ODD = "B-_~:?#[]@!$&'()*+=\"<>{}|^`618"  # from Apache's own test of several nodes
SOURCE = "MirrorSourceConnector"
BESIDE = ("MirrorCheckpointConnector", "MirrorHeartbeatConnector")
FACTORS = (
    "replication.factor",
    "offset-syncs.topic.replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
    "config.storage.replication.factor",
)
CALLED = re.compile(r"Listening for group members on (\S+)")


@dataclass(kw_only=True)
class File:
    """An mm2.properties for the flow of *site*, with special characters in an alias.

    *serves_others* enables the internal REST API of the processes.
    """

    site: Site
    target_alias: str = ODD
    serves_others: bool = True

    @property
    def flow(self) -> str:
        return f"{self.site.alias}->{self.target_alias}"

    @property
    def path(self) -> str:
        """Returns the path of internal requests to its source connector."""
        aliases = (self.site.alias, self.target_alias)
        return "".join(f"/{quote(alias, safe='')}" for alias in aliases) + f"/connectors/{SOURCE}"

    @property
    def connector(self) -> str:
        """Returns the displayed name of the connector, quoted for a path."""
        return self._quoted_name(SOURCE)

    def text(self, topics: str, more: Mapping[str, str] | None = None) -> str:
        source, target = self.site.alias, self.target_alias
        return format_properties(
            {
                "clusters": f"{source}, {target}",
                f"{source}.bootstrap.servers": self.site.source.bootstrap,
                f"{target}.bootstrap.servers": self.site.target.bootstrap,
                f"{self.flow}.enabled": "true",
                f"{self.flow}.topics": topics,
                "emit.heartbeats.enabled": "false",
                "offset-syncs.topic.location": "target",
                "refresh.topics.interval.seconds": "1",
                "tasks.max": "4",
                "dedicated.mode.enable.internal.rest": str(self.serves_others).lower(),
                f"{target}.session.timeout.ms": "6000",
                "listeners": "http://127.0.0.1:0",
                "mirrorflow.http.listeners": "http://127.0.0.1:0",
                **dict.fromkeys(FACTORS, "1"),
                **(more or {}),
            }
        )

    def worker_id(self, node: Replicator) -> str:
        url = internal_url(node) if self.serves_others else node.url
        return f"{url.partition('//')[2]}/{self.flow}"

    def wait_until_shared(self, nodes: Sequence[Replicator], tasks: int) -> None:
        # All connectors of a flow belong to one group, which spreads their tasks together.
        beside = [self._quoted_name(name) for name in BESIDE]
        wait_until_shared(nodes, tasks, self.connector, self.worker_id, beside)

    def _quoted_name(self, connector: str) -> str:
        return quote(f"{self.flow}.{connector}", safe="")


@contextmanager
def processes(file: File, count: int, text: str) -> Iterator[list[Replicator]]:
    """Runs *count* processes with the same *text*, and yields them once they are ready."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                Replicator(
                    form="mm2",
                    files=(text,),
                    folder=file.site.folder,
                    name=f"p{number}",
                    source=file.site.source,
                )
            )
            for number in range(count)
        ]
        for process in running:
            wait_until_ready(process)
        yield running


def wait_until_ready(node: Replicator) -> None:
    wait_until(f"{node.name} is ready", lambda: node.rest("/readyz")[0] == 200)


def internal_url(node: Replicator) -> str:
    """Returns the address for internal requests to *node*."""
    match = CALLED.search(node.log_text())
    assert match is not None
    return match[1]


def leader(nodes: Sequence[Replicator]) -> Replicator:
    """Returns the node that its last rebalance made leader."""
    return next(
        node for node in nodes if node.log_text().rstrip() and "this node leads" in last_rebalance(node)
    )


def last_rebalance(node: Replicator) -> str:
    return [line for line in node.log_text().splitlines() if " connectors and tasks here" in line][-1]
