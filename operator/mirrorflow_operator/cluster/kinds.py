"""The kinds of objects that the operator reads or writes, and where the API has them."""

from dataclasses import dataclass
from typing import Final

FIELD_MANAGER: Final = "mirrorflow-operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`group` is "" for the core group."""

    group: str
    version: str
    plural: str
    name: str

    @property
    def api_version(self) -> str:
        """As objects say it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Of a list or of one object; *namespace* None: of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = "" if namespace is None else f"/namespaces/{namespace}"
        parts = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{inside}/{self.plural}{parts}"


MIRROR_FLOW: Final = Kind(group="mirrorflow.io", version="v1alpha1", plural="mirrorflows", name="MirrorFlow")
SERVICE_ACCOUNT: Final = Kind(group="", version="v1", plural="serviceaccounts", name="ServiceAccount")
CONFIG_MAP: Final = Kind(group="", version="v1", plural="configmaps", name="ConfigMap")
NETWORK_POLICY: Final = Kind(
    group="networking.k8s.io", version="v1", plural="networkpolicies", name="NetworkPolicy"
)
SERVICE: Final = Kind(group="", version="v1", plural="services", name="Service")
DISRUPTION_BUDGET: Final = Kind(
    group="policy", version="v1", plural="poddisruptionbudgets", name="PodDisruptionBudget"
)
DEPLOYMENT: Final = Kind(group="apps", version="v1", plural="deployments", name="Deployment")
JOB: Final = Kind(group="batch", version="v1", plural="jobs", name="Job")
CRON_JOB: Final = Kind(group="batch", version="v1", plural="cronjobs", name="CronJob")
POD: Final = Kind(group="", version="v1", plural="pods", name="Pod")
EVENT: Final = Kind(group="", version="v1", plural="events", name="Event")
LEASE: Final = Kind(group="coordination.k8s.io", version="v1", plural="leases", name="Lease")
# What a plan may hold; what is not here is neither applied nor pruned.
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


def kind_of(planned: dict[str, object]) -> Kind:
    """Of a planned object. KeyError for a kind that no role lets the operator write."""
    return _BY_NAME[str(planned["kind"])]
