"""A planned connector as its process will understand it: the same texts through the same reader.

So `plan` and `check` find what `run` would find, unknown and refused properties included.
"""

from mirrorflow_cli.errors import FailedError
from mirrorflow_operator.plan.plan import ConnectorKind, ConnectorPlan, Plan
from mirrorflow_replicator.connect.properties import format_properties
from mirrorflow_replicator.connect.worker import load_standalone
from mirrorflow_replicator.settings import SourceSettings, WorkerSettings


def worker_settings(connector: ConnectorPlan) -> WorkerSettings:
    """What the process of *connector* is told. Raises SettingError."""
    worker, own = (
        format_properties(connector.worker_properties),
        format_properties(connector.connector_properties),
    )
    return load_standalone(worker, [own])


def source_settings(planned: Plan) -> tuple[SourceSettings, tuple[str, ...]]:
    """The source connector's settings, and what its reader has to say about them. Raises SettingError."""
    for connector in planned.connectors:
        if connector.kind is ConnectorKind.SOURCE:
            read = worker_settings(connector)
            if read.connectors[0].source is not None:
                return read.connectors[0].source, read.warnings
    raise FailedError(
        f"Flow {planned.flow} has no source connector that is enabled; spec.connectors.source.config says so."
    )
