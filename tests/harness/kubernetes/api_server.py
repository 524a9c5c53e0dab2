"""A real Kubernetes without nodes: etcd, the API server and, unless told otherwise, the controllers.

    with ApiServer(folder=tmp_path) as server:
        server.kubectl("get", "namespaces")
        server.user("alice", groups=["staff"])("auth", "whoami")

Ready in three seconds. Authorization is RBAC's; the user of `kubectl` may do everything. No pod ever runs here, but
Deployments make ReplicaSets, these make Pods, and owners take their children with them. All ports are on 127.0.0.1, and
all processes end with the tests, however they end.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.kafka.processes import Child, free_port, start, wait_until
from tests.harness.kubernetes.authority import Authority
from tests.harness.kubernetes.faults import WRITES
from tests.harness.kubernetes.installation import CONTROL, require_control_plane
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.requests import is_ready

START_WAIT_S = 120.0  # three seconds alone; more when a whole suite runs on two cores
ADMINISTRATORS = "system:masters"
SERVICES = "10.0.0.0/24"  # addresses that Services are given; nothing routes them here


# Who asked for what, without bodies: Secrets do not reach a file.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A kind of request as a rule of RBAC has it; a subresource stands behind a slash, the core group is empty."""

    verb: str
    group: str
    resource: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """One write that was done; *resource* is `configmaps`, `mirrorflows/status`."""

    verb: str
    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """One request of the audit log. A watch is logged when it begins and when it ends, as `ended` says."""

    asked: Asked
    namespace: str
    name: str
    allowed: bool
    status: int
    ended: bool
    at: str  # when it was received; RFC 3339 with microseconds

    @property
    def is_write(self) -> bool:
        """Leases do not count: their holder writes for ever."""
        return self.asked.verb in WRITES and self.asked.resource != "leases"


def _logged(event: Any) -> Logged:
    about = event["objectRef"]
    part = f"/{about['subresource']}" if "subresource" in about else ""
    return Logged(
        asked=Asked(verb=event["verb"], group=about.get("apiGroup", ""), resource=about["resource"] + part),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        allowed=event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow",
        status=event.get("responseStatus", {}).get("code", 0),
        ended=event["stage"] == "ResponseComplete",
        at=event["requestReceivedTimestamp"],
    )


@dataclass(kw_only=True, slots=True)
class ApiServer:
    """The children are open to tests that kill or freeze them; `restart_api` brings the API server back on its port."""

    folder: Path
    controllers: bool = True
    controller_calls_per_s: int = 20  # kube-controller-manager's own default
    port: int = field(default_factory=free_port, init=False)
    etcd: Child = field(init=False)
    api: Child = field(init=False)
    controller_manager: Child | None = field(default=None, init=False)
    kubectl: Kubectl = field(init=False)
    _authority: Authority = field(init=False)
    _etcd_url: str = field(init=False)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def _audit_log(self) -> Path:
        return self.folder / "audit.log"

    def __enter__(self) -> Self:
        require_control_plane()
        self._authority = Authority(self.folder / "pki")
        self._authority.server("api", "127.0.0.1", "localhost", "kubernetes.default.svc")
        self._authority.signing_key("tokens")
        self.kubectl = self.user("administrator", groups=[ADMINISTRATORS])
        self._start_etcd()
        self.restart_api()
        if self.controllers:
            self._start_controllers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nothing here is worth an orderly end: the folder goes with the test.
        for child in (self.controller_manager, self.api, self.etcd):
            if child is not None:
                child.kill()

    def user(self, name: str, groups: Sequence[str] = ()) -> Kubectl:
        """kubectl as *name* of *groups*, who may do what roles grant and no more."""
        identity = self._authority.user(name, groups)
        return Kubectl(kubeconfig=self._authority.kubeconfig(identity, self.url))

    def asked_by(self, user: str) -> frozenset[Asked]:
        """Each kind of request that *user* has made and was allowed, since the start: what a role must grant, and no more."""
        return frozenset(one.asked for one in self.log_of(user) if one.allowed)

    def written_by(self, user: str, namespace: str = "") -> list[Written]:
        """What *user* has written, in order; in *namespace* alone where one is named. Leases do not count: they never rest."""
        return [
            Written(
                verb=one.asked.verb,
                resource=one.asked.resource,
                namespace=one.namespace,
                name=one.name,
            )
            for one in self.log_of(user)
            if one.is_write and one.status < 300 and namespace in {"", one.namespace}
        ]

    def log_of(self, user: str, since: int = 0) -> Iterator[Logged]:
        """Each request about a resource that *user* has made, in the order of their ends; after the first *since* bytes of the log."""
        with self._audit_log.open("rb") as log:
            log.seek(since)
            for line in log:
                if not line.endswith(b"\n") or user.encode() not in line:
                    continue
                event = json.loads(line)
                if event["user"]["username"] == user and event.get("objectRef"):
                    yield _logged(event)

    def log_size(self) -> int:
        """Bytes so far, for `log_of`."""
        return self._audit_log.stat().st_size

    def restart_api(self) -> None:
        """Starts the API server, again after it was killed; returns when it is ready."""
        pki = self._authority.folder
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        self.api = self._start(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # 127.0.0.1 may be no endpoint of a Service, and none is needed
            f"--secure-port={self.port}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=RBAC",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'api.crt'}",
            f"--tls-private-key-file={pki / 'api.key'}",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={pki / 'tokens.key'}",
            f"--service-account-signing-key-file={pki / 'tokens.key'}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._audit_log}",
        )
        wait_until("the API server is ready", self._ready, timeout_s=START_WAIT_S)

    def _start_etcd(self) -> None:
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        peers = f"http://127.0.0.1:{free_port()}"
        self.etcd = self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        )

    def _start_controllers(self) -> None:
        name = "system:kube-controller-manager"
        pki = self._authority.folder
        self.controller_manager = self._start(
            "kube-controller-manager",
            f"--kubeconfig={self._authority.kubeconfig(self._authority.user(name), self.url)}",
            "--secure-port=0",
            "--leader-elect=false",
            f"--kube-api-qps={self.controller_calls_per_s}",
            f"--kube-api-burst={2 * self.controller_calls_per_s}",
            "--use-service-account-credentials",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'tokens.key'}",
        )

    def _start(self, name: str, *arguments: str) -> Child:
        return start(name, [str(CONTROL / name), *arguments], log=self.folder / f"{name}.log")

    def _ready(self) -> bool:
        self.etcd.must_run()
        self.api.must_run()
        return is_ready(self.url, self._authority.own.certificate)
