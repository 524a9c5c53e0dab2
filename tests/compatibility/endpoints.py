"""The clusters of a trial.

They are brokers of a release that the harness starts, or a cluster given by its addresses.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mirrorflow_core.java.properties import parse_properties
from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster

T = TypeVar("T")
RELEASE = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A cluster that exists. *properties* are those of a Java client, and *home* is a folder for files of tools."""

    name: str
    alias: str
    properties: Mapping[str, str]
    home: Path

    def java_client(self, listener: str = "") -> dict[str, str]:
        """Returns the properties of a Java client. There is only one listener."""
        return dict(self.properties)

    def call(self, use: Callable[[Cluster], Awaitable[T]]) -> T:
        """Runs *use* with MirrorFlow's client. Raises ClusterError."""
        client = ClientSettings(alias=self.alias, client_id="compatibility", properties=self.properties)

        async def main() -> T:
            connected = await Cluster.connect(client, resolve=dict)
            try:
                return await use(connected)
            finally:
                await connected.close()

        return asyncio.run(main())

    def without_addresses(self, text: str) -> str:
        """Returns *text* with the alias instead of each address, so that a result contains no host."""
        for address in self.properties["bootstrap.servers"].split(","):
            for part in (address.strip(), address.strip().rpartition(":")[0]):
                text = text.replace(part, self.alias) if part else text
        return text


@contextmanager
def opened(where: str, alias: str, *, name: str, client: Path | None, folder: Path) -> Iterator[Endpoint]:
    """Provides the cluster *where*: a release such as 4.4.0, or bootstrap addresses with the properties file *client*.

    *name* describes a cluster given by addresses.
    """
    home = folder / alias
    home.mkdir(parents=True, exist_ok=True)
    if RELEASE.fullmatch(where):
        with KafkaCluster(name=alias, version=where, authorizer=True) as cluster:
            properties = cluster.java_client("PLAINTEXT")
            yield Endpoint(name=f"Apache Kafka {where}", alias=alias, properties=properties, home=home)
        return
    properties = {} if client is None else dict(parse_properties(client.read_text()))
    yield Endpoint(name=name, alias=alias, properties=properties | {"bootstrap.servers": where}, home=home)
