"""Reads the operator's settings from environment variables; an invalid value prevents the start."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mirrorflow_operator.errors import SettingsError

# More workers would only wait for the API server, which accepts some tens of writes a second per client.
WORKERS_MAX: Final = 64
SETTLE_S: Final = 60.0  # Ready changes only after a minute
SEED_ACCOUNT: Final = "mirrorflow-seed"  # created by the chart, with the role that a driver needs
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The operator's settings. Names end in their unit. Times that tests shorten are settings, too."""

    namespaces: tuple[str, ...] = ()  # namespaces whose MirrorFlows are reconciled; empty: the whole cluster
    selector: str = ""  # the label selector of these MirrorFlows; empty: all
    replicator_image: str = "mirrorflow/replicator"  # the repository, without a tag
    replicator_versions: tuple[str, ...] = ("0.1.0",)  # the available tags; the first is for new flows
    seed_image: str = "mirrorflow/seed"  # the repository of the Spark jobs; same versions as the replicator
    seed_account: str = SEED_ACCOUNT  # the ServiceAccount of the drivers, in each flow's namespace
    pod_namespace: str = "default"  # the namespace of the Lease
    pod_name: str = "mirrorflow-operator"  # the start of the Lease holder's identity
    listener_host: str = "0.0.0.0"  # noqa: S104  probes and Prometheus come from outside of the pod
    listener_port: int = 8080
    poll_s: float = 30.0
    # A PEM file of CA certificates, to poll connectors that have a certificate over TLS
    progress_ca: str | None = None
    settle_s: float = SETTLE_S  # how long a new finding must hold before Ready changes
    workers: int = 8
    lease: str = "mirrorflow-operator"
    lease_s: float = 15.0  # the Lease's duration without a renewal; it is renewed every third of it
    resync_s: float = 600.0  # between two full lists, which find what the watches may have missed
    log_level: str = "INFO"


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Reads *environment*; an empty value counts as not set.

    Raises SettingsError for the first invalid one.
    """
    variables = {name: value for name, value in environment.items() if value}
    default = Settings()
    host, port = _listener(variables, default)
    return Settings(
        namespaces=_list(variables, "MIRRORFLOW_NAMESPACES"),
        selector=variables.get("MIRRORFLOW_SELECTOR", ""),
        replicator_image=variables.get("MIRRORFLOW_REPLICATOR_IMAGE", default.replicator_image),
        replicator_versions=_list(variables, "MIRRORFLOW_REPLICATOR_VERSIONS") or default.replicator_versions,
        seed_image=variables.get("MIRRORFLOW_SEED_IMAGE", default.seed_image),
        seed_account=variables.get("MIRRORFLOW_SEED_SERVICE_ACCOUNT", default.seed_account),
        pod_namespace=variables.get("POD_NAMESPACE", default.pod_namespace),
        pod_name=variables.get("POD_NAME", default.pod_name),
        listener_host=host,
        listener_port=port,
        poll_s=_number(variables, "MIRRORFLOW_POLL_S", default.poll_s, minimum=0.1),
        progress_ca=variables.get("MIRRORFLOW_PROGRESS_CA") or None,
        settle_s=_number(variables, "MIRRORFLOW_SETTLE_S", default.settle_s, minimum=0, maximum=3_600),
        workers=int(
            _number(variables, "MIRRORFLOW_WORKERS", default.workers, minimum=1, maximum=WORKERS_MAX)
        ),
        lease=variables.get("MIRRORFLOW_LEASE", default.lease),
        lease_s=_number(variables, "MIRRORFLOW_LEASE_S", default.lease_s, minimum=3, maximum=3_600),
        resync_s=_number(variables, "MIRRORFLOW_RESYNC_S", default.resync_s, minimum=1),
        log_level=_level(variables, default),
    )


def _list(variables: Mapping[str, str], name: str) -> tuple[str, ...]:
    parts = (part.strip() for part in variables.get(name, "").split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def _number(
    variables: Mapping[str, str], name: str, default: float, *, minimum: float, maximum: float = 86_400.0
) -> float:
    text = variables.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not minimum <= number <= maximum:
        raise SettingsError(name, text, f"write a number from {minimum:g} to {maximum:g}")
    return number


def _listener(variables: Mapping[str, str], default: Settings) -> tuple[str, int]:
    text = variables.get("MIRRORFLOW_LISTENER")
    if text is None:
        return default.listener_host, default.listener_port
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise SettingsError("MIRRORFLOW_LISTENER", text, "write host:port, for example 0.0.0.0:8080")
    return host.strip("[]"), int(port)


def _level(variables: Mapping[str, str], default: Settings) -> str:
    level = variables.get("MIRRORFLOW_LOG_LEVEL", default.log_level)
    if level.upper() not in _LEVELS:
        raise SettingsError("MIRRORFLOW_LOG_LEVEL", level, f"write one of {', '.join(_LEVELS)}")
    return level.upper()
