"""A planned connector as its process will understand it: the same texts through the same reader.

So `plan` and `check` find what `run` would find, unknown and refused properties included.
"""

from mirrorflow_cli.errors import FailedError
from mirrorflow_operator.plan.plan import ConnectorKind, ConnectorPlan, Plan
from mirrorflow_replicator.connect.properties import format_properties
from mirrorflow_replicator.connect.worker import load_standalone
from mirrorflow_replicator.settings import (
    CheckpointSettings,
    HeartbeatSettings,
    SourceSettings,
    WorkerSettings,
)


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


def companion_settings(
    planned: Plan,
) -> tuple[CheckpointSettings | None, HeartbeatSettings | None, tuple[str, ...]]:
    """Settings of the checkpoint and the heartbeat connector, None for one that does not run; and what is to be said of them.

    Raises SettingError.
    """
    read = [worker_settings(one) for one in planned.connectors if one.kind is not ConnectorKind.SOURCE]
    connectors = [connector for worker in read for connector in worker.connectors]
    return (
        next((one.checkpoint for one in connectors if one.checkpoint is not None), None),
        next((one.heartbeat for one in connectors if one.heartbeat is not None), None),
        tuple(dict.fromkeys(warning for worker in read for warning in worker.warnings)),
    )
