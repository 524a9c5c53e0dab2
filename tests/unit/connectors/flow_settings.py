"""The settings of a flow from east to west."""

from mirrorflow_core.settings import SourceSettings
from mirrorflow_replicator.config.source_properties import parse_source


def settings() -> SourceSettings:
    """Returns settings of a flow that begins at the latest records."""
    return parse_source(
        {
            "name": "source",
            "source.cluster.alias": "east",
            "target.cluster.alias": "west",
            "source.cluster.bootstrap.servers": "a:1",
            "consumer.auto.offset.reset": "latest",
        },
        {"bootstrap.servers": "b:1"},
    )
