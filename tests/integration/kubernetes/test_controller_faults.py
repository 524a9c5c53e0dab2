"""The operator recovers from a kill at any write, a missing API server or CRD, missing permissions, and ended watches."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.fault_proxy import FaultProxy
from tests.harness.kubernetes.faults import ALWAYS, Drop, LoseResponse, Match, Refuse
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.conftest import DEFINITIONS
from tests.integration.kubernetes.controlled import existing_objects, manifest, object_names, planned

PROCESSES_MAX = 30
READS = "list,watch"
WRITTEN = (
    "serviceaccounts",
    "configmaps",
    "services",
    "networkpolicies.networking.k8s.io",
    "poddisruptionbudgets.policy",
    "deployments.apps",
    "jobs.batch",
    "cronjobs.batch",
)


def _complete(namespace: Kubectl, document: dict[str, object]) -> Callable[[], bool]:
    expected = object_names(planned(document, namespace.namespace))
    return lambda: set(existing_objects(namespace)) == expected


@pytest.mark.parametrize(
    ("fault", "skip"), [(LoseResponse, 0), (Drop, 1)], ids=["before-the-response", "before-the-next-write"]
)
def test_an_operator_killed_at_each_write_completes_the_flow(
    mirrorflows: ApiServer,
    namespace: Kubectl,
    tmp_path: Path,
    fault: type[LoseResponse] | type[Drop],
    skip: int,
):
    """Each process makes one write and is killed with kill -9. No write is repeated."""
    user = mirrorflows.user(f"mortal-{namespace.namespace}", groups=["system:masters"])
    document = manifest()
    namespace.apply(document)

    with FaultProxy(server_kubeconfig=user.kubeconfig, folder=tmp_path) as proxy:
        for number in range(PROCESSES_MAX):
            operator = OperatorProcess(
                kubeconfig=proxy.kubeconfig,
                folder=tmp_path,
                namespaces=[namespace.namespace],
                name=f"life-{number}",
            )
            with operator:
                rule = proxy.on(Match(write=True), fault(then=operator.child.kill), skip=skip)
                wait_until("the operator has died at a write, or is idle", _has_ended_or_is_idle(operator))
                if operator.child.running:
                    break
                assert rule.hits == 1
            proxy.heal()

    assert _complete(namespace, document)()
    children = [
        (write.resource, write.name)
        for write in mirrorflows.written_by(f"mortal-{namespace.namespace}")
        # The first operator of an API server writes the CRD, regardless of which test starts it.
        if write.resource not in {"mirrorflows/status", "events", "customresourcedefinitions"}
    ]
    # The ServiceAccount is written twice, first with its content, and then with the pinned values as annotations.
    assert sorted(children) == sorted([*set(children), ("serviceaccounts", "east-to-west")])
    assert len(children) == 9
    assert number >= 9


@pytest.mark.usefixtures("built")
def test_the_operator_waits_for_a_missing_crd_and_a_missing_api_server(tmp_path: Path):
    """The CRD is created later, and the API server is killed and restarted. The same process continues."""
    with ApiServer(folder=tmp_path / "server", controllers=False) as server:
        user = server.user("operator", groups=["system:masters"])
        with OperatorProcess(kubeconfig=user.kubeconfig, folder=tmp_path) as operator:
            wait_until("the missing CRD is reported", lambda: "MirrorFlow CRD" in operator.get("/readyz")[1])
            assert operator.get("/readyz")[0] == 503
            assert operator.get("/healthz")[0] == 200
            server.kubectl("apply", "--server-side", f"--filename={DEFINITIONS}")
            operator.wait_until_leading()
            first = manifest("first")
            server.kubectl.apply(first)
            wait_until("the first flow is complete", _complete(server.kubectl, first))

            server.api.kill()
            wait_until("the operator does not lead any more", lambda: operator.metric("leader") == 0)
            wait_until(
                "the unreachable API server is reported",
                lambda: operator.get("/readyz")[0] == 503,
            )
            assert "has not answered" in operator.get("/readyz")[1]
            assert operator.get("/healthz")[0] == 200
            server.restart_api()
            second = manifest("second")
            server.kubectl.apply(second)
            server.kubectl("delete", "mirrorflow", "first")

            expected = object_names(planned(second, "default"))
            wait_until(
                "the second flow is complete", lambda: expected <= set(existing_objects(server.kubectl))
            )
            operator.child.must_run()
            assert "Traceback" not in operator.child.log.read_text()


def _has_ended_or_is_idle(operator: OperatorProcess) -> Callable[[], bool]:
    def over() -> bool:
        if not operator.child.running:
            return True
        return operator.idle and operator.metric('reconciles_total{result="ok"}') > 0

    return over


def _grant(admin: Kubectl, user: str, *, but: str = "") -> None:
    """Grants all permissions that the operator needs in the namespace, except the permission to write *but*."""
    kinds = {
        "mirrorflows.mirrorflow.io": READS,
        "mirrorflows.mirrorflow.io/status": "patch",
        "pods": READS,
        "events": "list,create",
        "leases.coordination.k8s.io": "get,create,update",
        **dict.fromkeys(WRITTEN, f"{READS},create,patch,delete"),
    }
    if but:
        kinds[but] = READS
    rules = []
    for kind, verbs in kinds.items():
        resource, _, part = kind.partition("/")
        name, _, group = resource.partition(".")
        rules.append(
            {
                "apiGroups": [group],
                "resources": [f"{name}/{part}" if part else name],
                "verbs": verbs.split(","),
            }
        )
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    common = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "operator"}}
    admin.apply({**common, "kind": "Role", "rules": rules})
    admin.apply({**common, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]})


def test_a_missing_permission_is_reported_and_does_not_affect_other_flows(
    mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path
):
    """One namespace lacks one write permission, and a second one all permissions.

    Status, log and a metric report them.
    """
    admin = mirrorflows.kubectl
    lacking, closed = f"{namespace.namespace}-lacking", f"{namespace.namespace}-closed"
    user = f"limited-{namespace.namespace}"
    for name in (lacking, closed):
        admin("create", "namespace", name)
    _grant(namespace, user)
    _grant(admin.within(lacking), user, but="configmaps")
    documents = [manifest() for _ in range(3)]
    for namespace_name, document in zip((namespace.namespace, lacking, closed), documents, strict=True):
        admin.within(namespace_name).apply(document)
    with OperatorProcess(
        kubeconfig=mirrorflows.user(user).kubeconfig,
        folder=tmp_path,
        namespaces=[namespace.namespace, lacking, closed],
        environment={"MIRRORFLOW_RESYNC_S": "2"},
    ) as operator:
        operator.wait_until_leading()
        wait_until("the first flow is complete", _complete(namespace, documents[0]))

        def is_reported() -> bool:
            status = admin.within(lacking)("get", "mirrorflow", "east-to-west", "--output=jsonpath={.status}")
            return "configmaps" in status and "forbidden" in status

        wait_until("the status reports the permission", is_reported)
        assert operator.metric('reconciles_total{result="ForbiddenError"}') > 0
        assert operator.metric('failed_lists_total{reason="ForbiddenError"}') > 0
        log = operator.child.log.read_text()
        assert f"Cannot read namespace {closed}; its flows are not reconciled" in log
        assert operator.get("/readyz")[0] == 200

        _grant(admin.within(closed), user)
        wait_until(
            "the flow of the closed namespace is complete", _complete(admin.within(closed), documents[2])
        )
        assert "Traceback" not in operator.child.log.read_text()


def test_refused_watches_are_restarted_and_deletions_in_between_are_reverted(
    mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path
):
    """kopf permanently gives up a refused watch.

    The operator detects this, and recreates what was deleted meanwhile.
    """
    user = mirrorflows.user(f"watching-{namespace.namespace}", groups=["system:masters"])
    document = manifest()
    namespace.apply(document)
    with (
        FaultProxy(server_kubeconfig=user.kubeconfig, folder=tmp_path) as proxy,
        OperatorProcess(
            kubeconfig=proxy.kubeconfig, folder=tmp_path, namespaces=[namespace.namespace]
        ) as operator,
    ):
        operator.wait_until_leading()
        wait_until("the flow is complete", _complete(namespace, document))
        wait_until("configmaps are watched", lambda: "configmaps" in proxy.watched())

        proxy.on(Match(verb="watch", resource="configmaps"), Refuse(403), times=ALWAYS)
        proxy.drop_watches(Match(resource="configmaps"))
        wait_until("the watch has ended", lambda: "configmaps" not in proxy.watched())
        namespace("delete", "configmap", "east-to-west-heartbeat")
        wait_until(
            "the watches are restarted", lambda: operator.metric("watch_restarts_total") > 0, timeout_s=120
        )
        proxy.heal()

        wait_until("the flow is complete again", _complete(namespace, document))
        wait_until("configmaps are watched", lambda: "configmaps" in proxy.watched())
        namespace("delete", "configmap", "east-to-west-heartbeat")
        wait_until("the flow is complete again", _complete(namespace, document))
