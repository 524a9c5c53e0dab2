"""A real Kubernetes API without nodes: etcd, the API server and, by default, the controllers.

        with ApiServer(folder=tmp_path) as server:
            server.kubectl("get", "namespaces")
            server.user("alice", groups=["staff"])("auth", "whoami")

It is ready in three seconds. RBAC authorizes users; the user of `kubectl` may do everything. No pod runs, but Deployments
get ReplicaSets, these get Pods, and deletion cascades from owners. All ports are on 127.0.0.1, and all processes end with
the tests.
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

START_WAIT_S = 120.0  # three seconds on an idle machine; longer while a whole suite runs on two cores
ADMINISTRATORS = "system:masters"
SERVICES = "10.0.0.0/24"  # addresses of Services, which are not routed


# The log has users, and requests without bodies, so that no Secret is written to a file.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestKind:
    """A kind of request as in RBAC's rules. A subresource follows a slash, and the core group is empty."""

    verb: str
    group: str
    resource: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A successful write. *resource* is like `configmaps` or `mirrorflows/status`."""

    verb: str
    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditedRequest:
    """A request in the audit log. A watch is logged at its start and at its end, where `ended` is true."""

    kind: RequestKind
    namespace: str
    name: str
    allowed: bool
    status: int
    ended: bool
    received_at: str  # RFC 3339 with microseconds

    @property
    def is_write(self) -> bool:
        """Returns whether the request writes. Leases do not count, because their holder writes periodically."""
        return self.kind.verb in WRITES and self.kind.resource != "leases"


def _logged(event: Any) -> AuditedRequest:
    reference = event["objectRef"]
    subresource = f"/{reference['subresource']}" if "subresource" in reference else ""
    return AuditedRequest(
        kind=RequestKind(
            verb=event["verb"],
            group=reference.get("apiGroup", ""),
            resource=reference["resource"] + subresource,
        ),
        namespace=reference.get("namespace", ""),
        name=reference.get("name", ""),
        allowed=event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow",
        status=event.get("responseStatus", {}).get("code", 0),
        ended=event["stage"] == "ResponseComplete",
        received_at=event["requestReceivedTimestamp"],
    )


@dataclass(kw_only=True, slots=True)
class ApiServer:
    """An API server whose processes tests may kill or freeze. `restart_api` restarts it on its port."""

    folder: Path
    controllers: bool = True
    controller_calls_per_s: int = 20  # kube-controller-manager's own default
    api_arguments: Sequence[str] = ()  # more options of the API server
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
        # A graceful stop is not needed, because the folder is deleted with the test.
        for child in (self.controller_manager, self.api, self.etcd):
            if child is not None:
                child.kill()

    def user(self, name: str, groups: Sequence[str] = ()) -> Kubectl:
        """Returns kubectl as *name* of *groups*, who may do exactly what roles grant."""
        identity = self._authority.user(name, groups)
        return Kubectl(kubeconfig=self._authority.kubeconfig(identity, self.url))

    def allowed_requests(self, user: str) -> frozenset[RequestKind]:
        """Returns each kind of request that *user* has made and was allowed, which is exactly what a role must grant."""
        return frozenset(request.kind for request in self.audit_log_of(user) if request.allowed)

    def written_by(self, user: str, namespace: str = "") -> list[Written]:
        """Returns the writes of *user* in order, in *namespace* or in all. Leases do not count, because they never stop."""
        return [
            Written(
                verb=request.kind.verb,
                resource=request.kind.resource,
                namespace=request.namespace,
                name=request.name,
            )
            for request in self.audit_log_of(user)
            if request.is_write and request.status < 300 and namespace in {"", request.namespace}
        ]

    def audit_log_of(self, user: str, since: int = 0) -> Iterator[AuditedRequest]:
        """Yields the requests of *user* for resources in the order of their ends, after the first *since* bytes of the
        log.
        """
        with self._audit_log.open("rb") as log:
            log.seek(since)
            for line in log:
                if not line.endswith(b"\n") or user.encode() not in line:
                    continue
                event = json.loads(line)
                if event["user"]["username"] == user and event.get("objectRef"):
                    yield _logged(event)

    def log_size(self) -> int:
        """Returns the size of the audit log in bytes, for `audit_log_of`."""
        return self._audit_log.stat().st_size

    def restart_api(self) -> None:
        """Starts the API server, even if it was killed, and returns when it is ready."""
        pki = self._authority.folder
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        self.api = self._start(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # 127.0.0.1 may not be an endpoint of a Service
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
            *self.api_arguments,
        )
        wait_until("the API server is ready", self._ready, timeout_s=START_WAIT_S)

    def _start_etcd(self) -> None:
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        peer_url = f"http://127.0.0.1:{free_port()}"
        self.etcd = self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
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
