"""Reads the MirrorFlow of a command, from `-f FILE` or from flags, and plans it as every command validates it.

Errors name the flags. `--from-config` and `--to-config` are a Java client's properties files. No secret of
them is copied: properties that may hold one become references to their key in the file (FileConfigProvider),
which the connector's process resolves.

Planning makes no network connections and reads no secrets. Planned properties are parsed as the connector's
process does, so `plan` and `check` find what `run` would find.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mirrorflow_cli.errors import FailedError, UsageError
from mirrorflow_core import setting_table
from mirrorflow_core.errors import InvalidSettingError, SettingError
from mirrorflow_core.java.properties import format_properties, parse_properties, read_list
from mirrorflow_core.settings import CheckpointSettings, HeartbeatSettings, SourceSettings, WorkerSettings
from mirrorflow_kafka.security.client_security import ClientSettingError, check_client, clients_of
from mirrorflow_operator.api.load import load_flow, parse_flow
from mirrorflow_operator.api.rules.table import may_hold_secret
from mirrorflow_operator.api.spec import API_VERSION, KIND, NAME_MAX, MirrorFlow
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.errors import InvalidSpecError
from mirrorflow_operator.plan.properties import ConnectorPlan, Plan, plan
from mirrorflow_operator.plan.secret_layout import FILE_PROVIDER, SecretLayout
from mirrorflow_replicator.config.checkpoint_properties import parse_checkpoint
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.http.rest_plugins import problems

FILE_MAX_BYTES = 1024 * 1024  # etcd takes no larger object
_OTHER_FORMS = {
    "Strimzi's KafkaMirrorMaker2": re.compile(r"""(?:^|[\s{,])["']?kind["']?\s*:\s*["']?KafkaMirrorMaker2"""),
    # Not indented: a file of Docker Compose or Kubernetes may contain one.
    "an mm2.properties": re.compile(r"^clusters[ \t]*=", re.MULTILINE),
}
_FLAGS = {
    "spec.source.bootstrapServers": "--from",
    "spec.target.bootstrapServers": "--to",
    "spec.topics.include": "--topics",
    "spec.groups.include": "--groups",
    "spec.source.authentication.config": "--from-config",
    "spec.target.authentication.config": "--to-config",
    "spec.source.config": "--from-config",
    "spec.target.config": "--to-config",
    "spec.source.alias": "--from-alias",
    "spec.target.alias": "--to-alias",
}
ADDRESSES = "bootstrap.servers"
_PROTOCOL = "security.protocol"
_HOST_NAMES = "ssl.endpoint.identification.algorithm"
_ENDS_A_PATH = (":", "}")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_CLIENT_SCOPES = (setting_table.Scope.CLIENT,)


def flow_from(arguments: argparse.Namespace) -> MirrorFlow:
    """Returns the flow given by *arguments*. Raises UsageError with all errors, one per line."""
    given = [
        name
        for name in (
            "source",
            "target",
            "topics",
            "groups",
            "from_alias",
            "to_alias",
            "from_config",
            "to_config",
            "naming",
        )
        if getattr(arguments, name, None)
    ]
    if arguments.file and given:
        raise UsageError("-f cannot be combined with --from, --to and related flags; use one form.")
    try:
        if arguments.file:
            return _load(arguments.file)
        sides = (("source", "from_config"), ("target", "to_config"))
        if not all(any(getattr(arguments, name, None) for name in side) for side in sides):
            flags = (
                ", or --from HOST:PORT --to HOST:PORT --topics REGEX" if hasattr(arguments, "source") else ""
            )
            raise UsageError(f"Specify a flow: -f FILE{flags}.")
        return parse_flow(document_of(arguments))
    except InvalidSpecError as error:
        raise UsageError(errors_in_flags(error, arguments)) from error


def _load(name: str) -> MirrorFlow:
    """Returns the flow in the file *name*. Raises InvalidSpecError, and UsageError for a file to be converted."""
    text = read_text(name)
    try:
        return load_flow(text)
    except InvalidSpecError:
        for form, sign in _OTHER_FORMS.items():
            if sign.search(text):
                raise UsageError(
                    f"{name}: it is {form}, not a MirrorFlow; `mirrorflow convert {name}` makes one of it."
                ) from None
        raise


def flows_from(arguments: argparse.Namespace) -> list[MirrorFlow]:
    """Returns the flows of a command that accepts `-f` more than once.

    Raises UsageError like `flow_from`, and for a name that is used twice.
    """
    files = arguments.file or [None]
    flows = [flow_from(argparse.Namespace(**{**vars(arguments), "file": file})) for file in files]
    names = [flow.metadata.name for flow in flows]
    for name in {name for name in names if names.count(name) > 1}:
        raise UsageError(f"Two files contain a flow named {name}; give each its own metadata.name.")
    return flows


def layout_from(arguments: argparse.Namespace) -> SecretLayout:
    """Returns the layout in which Secrets and ConfigMaps are folders below `--secrets`. Raises UsageError."""
    folder = Path(arguments.secrets).expanduser().resolve()
    if not folder.is_dir():
        raise UsageError(
            f"--secrets: {arguments.secrets} is not a directory; name one with files <secretName>/<key>."
        )
    reads_files = any(getattr(arguments, name, None) for name in ("from_config", "to_config"))
    return SecretLayout(secrets=str(folder), config_maps=str(folder), reads_files=reads_files)


def read_text(name: str, what: str = "a MirrorFlow") -> str:
    """Returns the text of the file *name*; `-` is stdin. *what* is its expected content.

    Raises UsageError for a file that cannot be read, is too large or is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read(FILE_MAX_BYTES + 1) if name == "-" else _file_bytes(Path(name))
        if len(data) > FILE_MAX_BYTES:
            raise UsageError(f"{name} is larger than {FILE_MAX_BYTES} bytes; {what} never is.")
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(
            f"{name} cannot be read: {error.strerror}; name a file that contains {what}."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not a text file: byte {error.start} is not UTF-8; save it as UTF-8."
        ) from error


def _file_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_MAX_BYTES + 1)


def document_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the MirrorFlow document that the flags describe."""
    source, target = arguments.from_alias or "source", arguments.to_alias or "target"
    name = re.sub(r"[^a-z0-9]+", "-", f"{source}-to-{target}".lower()).strip("-")[:NAME_MAX].strip("-")
    topics: dict[str, Any] = {"include": _patterns(arguments.topics or [".*"])}
    if arguments.naming:
        topics["naming"] = {"policy": arguments.naming}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "source": {"alias": source, **_cluster(arguments.source, arguments.from_config, "--from-config")},
            "target": {"alias": target, **_cluster(arguments.target, arguments.to_config, "--to-config")},
            "topics": topics,
            # By default flags copy records only: nothing is written to the source, no group is synchronised.
            "groups": {"include": _patterns(arguments.groups or [])},
            "heartbeats": {"emitTo": []},
        },
    }


def _cluster(addresses: str | None, file: str | None, flag: str) -> dict[str, Any]:
    """Returns the fields of one cluster. Raises UsageError for a bad file or a missing address."""
    if file is None:
        return {"bootstrapServers": read_list(addresses or "")}
    properties = read_client_file(file, flag)
    servers = addresses or properties.get(ADDRESSES, "")
    if not servers:
        option = flag.removesuffix("-config")
        raise UsageError(f"{flag}: {file} has no {ADDRESSES}; add it, or set {option} HOST:PORT.")
    return {"bootstrapServers": read_list(servers), **cluster_fields(properties, file, flag)}


def _patterns(texts: Iterable[str]) -> list[str]:
    return [pattern for text in texts for pattern in read_list(text)]


def errors_in_flags(error: InvalidSpecError, arguments: argparse.Namespace) -> str:
    """Returns one line per error, with the flag or the field as the user wrote it."""
    lines = [str(problem) for problem in error.errors]
    if arguments.file:
        return "\n".join(f"{arguments.file}: {line}" for line in lines)
    for path, flag in _FLAGS.items():
        lines = [line.replace(path, flag) for line in lines]
    return "\n".join(lines)


def read_client_file(name: str, flag: str) -> dict[str, str]:
    """Returns the properties in the file *name*. Raises UsageError if the file cannot be read or parsed."""
    try:
        return parse_properties(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InvalidSettingError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{flag}: {name} cannot be read: {why}") from error


def cluster_fields(properties: Mapping[str, str], name: str, flag: str) -> dict[str, Any]:
    """Returns `tls`, `authentication` and `config` of a cluster from the *properties* of the file *name*.

    Names what Kafka's clients do not have on stderr, and leaves it out: Java ignores it. Raises UsageError for a misspelt security setting, for a `security.protocol` that Kafka does not have, and for
    a path that a reference cannot hold.
    """
    protocol = properties.get(_PROTOCOL, "").strip().upper() or "PLAINTEXT"
    if protocol not in _PROTOCOLS:
        raise UsageError(f"{flag}: {_PROTOCOL}={protocol} in {name} is not one of {', '.join(_PROTOCOLS)}.")
    for key in filter(_is_mistyped, properties):
        near = setting_table.suggestion(key, _CLIENT_SCOPES)
        raise UsageError(f"{flag}: {key} in {name} is no setting of Kafka's clients{near}")
    path = Path(name).resolve()
    fields: dict[str, Any] = {}
    if protocol.endswith("SSL"):
        fields["tls"] = {"verifyHostname": properties.get(_HOST_NAMES, "https") != ""}
    own = {
        key: _reference(path, key, flag) if may_hold_secret(key) else value
        for key, value in properties.items()
        if key.startswith(("sasl.", "ssl.")) and key != _HOST_NAMES
    }
    if own and protocol != "PLAINTEXT":
        fields["authentication"] = {"type": "Custom", "sasl": protocol.startswith("SASL"), "config": own}
    more = {
        key: value
        for key, value in properties.items()
        if key not in own
        and key not in {ADDRESSES, _PROTOCOL, _HOST_NAMES}
        and not key.startswith(("sasl.", "ssl."))
    }
    unknown = [key for key in more if setting_table.find(key, _CLIENT_SCOPES) is None]
    for key in unknown:
        near = setting_table.suggestion(key, _CLIENT_SCOPES)
        print(
            f"{flag}: {key} in {name} is no setting of Kafka's clients, it has no effect{near}",
            file=sys.stderr,
        )
        del more[key]
    return fields | ({"config": more} if more else {})


def _is_mistyped(key: str) -> bool:
    """Returns whether *key* seems to be a misspelt security setting, without which a client would not be secure."""
    if not key.startswith(("security.", "sasl.", "ssl.")) or setting_table.find(key, _CLIENT_SCOPES):
        return False
    return key.startswith("security.") or setting_table.suggestion(key, _CLIENT_SCOPES).endswith("?")


def _reference(path: Path, key: str, flag: str) -> str:
    """Returns a FileConfigProvider reference, `${file:PATH:KEY}`.

    Java has no escapes in it. Raises UsageError for a path with `:` or `}`.
    """
    for character in _ENDS_A_PATH:
        if character in str(path):
            raise UsageError(
                f"{flag}: {path} contains {character!r}, which references to passwords in that file cannot contain; "
                "move the file to another path."
            )
    return f"${{{FILE_PROVIDER}:{path}:{key}}}"


def valid_plan(flow: MirrorFlow, layout: SecretLayout) -> Plan:
    """Returns the plan of *flow*. Raises UsageError like `valid_plans`."""
    return valid_plans([flow], layout)[0]


def valid_plans(flows: Sequence[MirrorFlow], layout: SecretLayout) -> list[Plan]:
    """Returns the plan of each flow. Raises UsageError with a line for each refused setting."""
    plans = [plan(flow, layout) for flow in flows]
    refusals = [
        f"{planned.flow}: {sentence}"
        for planned in plans
        for connector in planned.connectors
        for sentence in _refusals(connector)
    ]
    if refusals:
        raise UsageError("\n".join(dict.fromkeys(refusals)))
    return plans


def _refusals(connector: ConnectorPlan) -> Iterator[str]:
    """Yields a sentence for each refused setting; for settings that depend on each other, only the first."""
    field = f"spec.connectors.{connector.kind.value}"
    errors = problems(
        connector.connector_properties["connector.class"].rpartition(".")[2],
        connector.connector_properties,
        connector.worker_properties,
    )
    if errors:
        yield from (f"{field}: {sentence}" for sentence in errors.values())
        return
    try:
        for client in clients_of(worker_settings(connector)):
            check_client(client)
    except ClientSettingError as error:
        yield str(error)  # The message names the cluster, and its settings are not in spec.connectors.
    except SettingError as error:
        yield f"{field}: {error}"


def worker_settings(connector: ConnectorPlan) -> WorkerSettings:
    """Returns the settings of the process of *connector*. Raises SettingError."""
    worker, own = (
        format_properties(connector.worker_properties),
        format_properties(connector.connector_properties),
    )
    return load_standalone(worker, [own])


def warnings_of(read: WorkerSettings) -> tuple[str, ...]:
    """Returns the warnings about the properties of a process and of its connectors."""
    own = (warning for connector in read.connectors for warning in connector.warnings)
    return tuple(dict.fromkeys((*read.warnings, *own)))


def source_settings(planned: Plan) -> tuple[SourceSettings, tuple[str, ...]]:
    """Returns the source connector's settings and its reader's warnings.

    Raises SettingError, and FailedError if the flow has no enabled source connector.
    """
    for connector in planned.connectors:
        if connector.kind is ConnectorKind.SOURCE:
            read = worker_settings(connector)
            if read.connectors[0].source is not None:
                return read.connectors[0].source, warnings_of(read)
    raise FailedError(
        f"Flow {planned.flow} has no source connector (disabled by spec.connectors.source.config)."
    )


def checkpoint_settings(planned: Plan) -> CheckpointSettings:
    """Returns the settings of the checkpoint connector. Raises SettingError, and FailedError if there is none."""
    for connector in planned.connectors:
        if connector.kind is ConnectorKind.CHECKPOINT:
            return parse_checkpoint(connector.connector_properties, connector.worker_properties)
    raise FailedError(
        f"Flow {planned.flow} has no checkpoint connector (disabled by spec.connectors.checkpoint)."
    )


def companion_settings(
    planned: Plan,
) -> tuple[CheckpointSettings | None, HeartbeatSettings | None, tuple[str, ...]]:
    """Returns settings of the checkpoint and heartbeat connectors (None if not running), and warnings.

    Raises SettingError.
    """
    read = [
        worker_settings(connector)
        for connector in planned.connectors
        if connector.kind is not ConnectorKind.SOURCE
    ]
    connectors = [connector for worker in read for connector in worker.connectors]
    return (
        next((settings.checkpoint for settings in connectors if settings.checkpoint is not None), None),
        next((settings.heartbeat for settings in connectors if settings.heartbeat is not None), None),
        tuple(dict.fromkeys(warning for worker in read for warning in warnings_of(worker))),
    )
