"""The kinds of Kubernetes objects that the operator reads or writes, and their API paths."""

from dataclasses import dataclass
from typing import Final

FIELD_MANAGER: Final = "mirrorflow-operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKind:
    """A kind of Kubernetes object; `group` is "" for the core group."""

    group: str
    version: str
    plural: str
    name: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Returns the path of a list or of one object; *namespace* None means all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = "" if namespace is None else f"/namespaces/{namespace}"
        parts = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{inside}/{self.plural}{parts}"


MIRROR_FLOW: Final = ObjectKind(
    group="mirrorflow.io", version="v1alpha1", plural="mirrorflows", name="MirrorFlow"
)
SERVICE_ACCOUNT: Final = ObjectKind(group="", version="v1", plural="serviceaccounts", name="ServiceAccount")
CONFIG_MAP: Final = ObjectKind(group="", version="v1", plural="configmaps", name="ConfigMap")
NETWORK_POLICY: Final = ObjectKind(
    group="networking.k8s.io", version="v1", plural="networkpolicies", name="NetworkPolicy"
)
SERVICE: Final = ObjectKind(group="", version="v1", plural="services", name="Service")
DISRUPTION_BUDGET: Final = ObjectKind(
    group="policy", version="v1", plural="poddisruptionbudgets", name="PodDisruptionBudget"
)
DEPLOYMENT: Final = ObjectKind(group="apps", version="v1", plural="deployments", name="Deployment")
JOB: Final = ObjectKind(group="batch", version="v1", plural="jobs", name="Job")
CRON_JOB: Final = ObjectKind(group="batch", version="v1", plural="cronjobs", name="CronJob")
POD: Final = ObjectKind(group="", version="v1", plural="pods", name="Pod")
EVENT: Final = ObjectKind(group="", version="v1", plural="events", name="Event")
LEASE: Final = ObjectKind(group="coordination.k8s.io", version="v1", plural="leases", name="Lease")
# The kinds that a plan may hold; other kinds are neither applied nor pruned.
CHILDREN: Final = (
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    NETWORK_POLICY,
    SERVICE,
    DISRUPTION_BUDGET,
    DEPLOYMENT,
    JOB,
    CRON_JOB,
)
WATCHED: Final = (MIRROR_FLOW, *CHILDREN, POD)
_BY_NAME: Final = {kind.name: kind for kind in CHILDREN}


def kind_of(planned: dict[str, object]) -> ObjectKind:
    """Returns a planned object's kind. Raises KeyError for a kind that the operator's role cannot write."""
    return _BY_NAME[str(planned["kind"])]
