"""The names of MM2's connector and task classes, as Connect's REST API takes and returns them."""

from mirrorflow_replicator.config.plugins import MIRROR_PACKAGE

SOURCE_CONNECTOR = "MirrorSourceConnector"
CHECKPOINT_CONNECTOR = "MirrorCheckpointConnector"
HEARTBEAT_CONNECTOR = "MirrorHeartbeatConnector"
SCHEMA_CONNECTOR = "MirrorSchemaConnector"
CONNECTORS = (SOURCE_CONNECTOR, CHECKPOINT_CONNECTOR, HEARTBEAT_CONNECTOR, SCHEMA_CONNECTOR)
_TASKS = {
    SOURCE_CONNECTOR: "MirrorSourceTask",
    CHECKPOINT_CONNECTOR: "MirrorCheckpointTask",
    HEARTBEAT_CONNECTOR: "MirrorHeartbeatTask",
    SCHEMA_CONNECTOR: "MirrorSchemaTask",
}


def simple_name(connector_class: str) -> str:
    """Returns the simple class name; MM2's classes may be given without package, and without "Connector"."""
    simple = connector_class.removeprefix(MIRROR_PACKAGE)
    return simple if simple in _TASKS or f"{simple}Connector" not in _TASKS else f"{simple}Connector"


def task_class(connector_class: str) -> str | None:
    """Returns the class of the tasks that Java starts for *connector_class*; None if that is unknown."""
    name = _TASKS.get(simple_name(connector_class))
    return None if name is None else f"{MIRROR_PACKAGE}{name}"
