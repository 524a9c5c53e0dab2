"""Faults around the operator: killed at any write, no API server, no CRD, no rights, watches that end. It reports them and continues."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.fault_proxy import FaultProxy
from tests.harness.kubernetes.faults import ALWAYS, Drop, LoseAnswer, Match, Refuse
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.conftest import DEFINITION
from tests.integration.kubernetes.controlled import manifest, names, planned, there

LIVES_MAX = 30
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
    wanted = names(planned(document, namespace.namespace))
    return lambda: set(there(namespace)) == wanted


@pytest.mark.parametrize(
    ("blow", "skip"), [(LoseAnswer, 0), (Drop, 1)], ids=["before-it-hears-of-it", "before-the-next-is-done"]
)
def test_an_operator_that_dies_at_each_of_its_writes_gets_there(
    mirrorflows: ApiServer,
    namespace: Kubectl,
    tmp_path: Path,
    blow: type[LoseAnswer] | type[Drop],
    skip: int,
):
    """Every life makes one write, and ends by kill -9; none of these is made twice."""
    user = mirrorflows.user(f"mortal-{namespace.namespace}", groups=["system:masters"])
    document = manifest()
    namespace.apply(document)

    with FaultProxy(kubeconfig_behind=user.kubeconfig, folder=tmp_path) as proxy:
        for life in range(LIVES_MAX):
            operator = OperatorProcess(
                kubeconfig=proxy.kubeconfig,
                folder=tmp_path,
                namespaces=[namespace.namespace],
                name=f"life-{life}",
            )
            with operator:
                rule = proxy.on(Match(write=True), blow(then=operator.child.kill), skip=skip)
                wait_until("it has died at a write, or has nothing left to do", _over(operator))
                if operator.child.running:
                    break
                assert rule.struck == 1
            proxy.heal()

    assert _complete(namespace, document)()
    children = [
        (one.resource, one.name)
        for one in mirrorflows.written_by(f"mortal-{namespace.namespace}")
        # The CRD is written by the first operator of a server, whichever test starts it.
        if one.resource not in {"mirrorflows/status", "events", "customresourcedefinitions"}
    ]
    # The ServiceAccount gets its own content, and annotations with what is pinned.
    assert sorted(children) == sorted([*set(children), ("serviceaccounts", "east-to-west")])
    assert len(children) == 9
    assert life >= 9


@pytest.mark.usefixtures("built")
def test_no_definition_and_no_api_server_are_waited_for(tmp_path: Path):
    """A definition that comes later, an API server that goes and comes back: the same process works in the end."""
    with ApiServer(folder=tmp_path / "server", controllers=False) as server:
        user = server.user("operator", groups=["system:masters"])
        with OperatorProcess(kubeconfig=user.kubeconfig, folder=tmp_path) as operator:
            wait_until("it says what is missing", lambda: "MirrorFlow CRD" in operator.answers("/readyz")[1])
            assert operator.answers("/readyz")[0] == 503
            assert operator.answers("/healthz")[0] == 200
            server.kubectl("apply", "--server-side", f"--filename={DEFINITION}")
            operator.wait_until_leading()
            first = manifest("first")
            server.kubectl.apply(first)
            wait_until("the first flow is there", _complete(server.kubectl, first))

            server.api.kill()
            wait_until("it this process does not lead any more", lambda: operator.metric("leader") == 0)
            wait_until(
                "it reports that the API server does not answer",
                lambda: operator.answers("/readyz")[0] == 503,
            )
            assert "has not answered" in operator.answers("/readyz")[1]
            assert operator.answers("/healthz")[0] == 200
            server.restart_api()
            second = manifest("second")
            server.kubectl.apply(second)
            server.kubectl("delete", "mirrorflow", "first")

            wanted = names(planned(second, "default"))
            wait_until("it works again", lambda: wanted <= set(there(server.kubectl)))
            operator.child.must_run()
            assert "Traceback" not in operator.child.log.read_text()


def _over(operator: OperatorProcess) -> Callable[[], bool]:
    def over() -> bool:
        if not operator.child.running:
            return True
        return operator.idle and operator.metric('reconciles_total{result="ok"}') > 0

    return over


def _grant(admin: Kubectl, user: str, *, but: str = "") -> None:
    """Everything that the operator needs in the namespace, without the right to write *but*."""
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


def test_a_missing_right_is_reported_and_does_not_affect_other_flows(
    mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path
):
    """Two namespaces: in one a right to write is missing, in the next every right. The status, the log and a metric say which."""
    admin = mirrorflows.kubectl
    lacking, closed = f"{namespace.namespace}-lacking", f"{namespace.namespace}-closed"
    user = f"limited-{namespace.namespace}"
    for name in (lacking, closed):
        admin("create", "namespace", name)
    _grant(namespace, user)
    _grant(admin.within(lacking), user, but="configmaps")
    documents = [manifest() for _ in range(3)]
    for where, document in zip((namespace.namespace, lacking, closed), documents, strict=True):
        admin.within(where).apply(document)
    with OperatorProcess(
        kubeconfig=mirrorflows.user(user).kubeconfig,
        folder=tmp_path,
        namespaces=[namespace.namespace, lacking, closed],
        environment={"MIRRORFLOW_RESYNC_S": "2"},
    ) as operator:
        operator.wait_until_leading()
        wait_until("the first is served", _complete(namespace, documents[0]))

        def told() -> bool:
            status = admin.within(lacking)("get", "mirrorflow", "east-to-west", "--output=jsonpath={.status}")
            return "configmaps" in status and "forbidden" in status

        wait_until("the status names the right", told)
        assert operator.metric('reconciles_total{result="ForbiddenError"}') > 0
        assert operator.metric('failed_lists_total{reason="ForbiddenError"}') > 0
        log = operator.child.log.read_text()
        assert f"Cannot read namespace {closed}; its flows are not reconciled" in log
        assert operator.answers("/readyz")[0] == 200

        _grant(admin.within(closed), user)
        wait_until("the closed one is served", _complete(admin.within(closed), documents[2]))
        assert "Traceback" not in operator.child.log.read_text()


def test_watches_that_are_refused_or_miss_something_begin_anew(
    mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path
):
    """kopf gives a refused watch up for good; the operator sees that, and what was deleted meanwhile is made again."""
    user = mirrorflows.user(f"watching-{namespace.namespace}", groups=["system:masters"])
    document = manifest()
    namespace.apply(document)
    with (
        FaultProxy(kubeconfig_behind=user.kubeconfig, folder=tmp_path) as proxy,
        OperatorProcess(
            kubeconfig=proxy.kubeconfig, folder=tmp_path, namespaces=[namespace.namespace]
        ) as operator,
    ):
        operator.wait_until_leading()
        wait_until("the flow is there", _complete(namespace, document))
        wait_until("configmaps are watched", lambda: "configmaps" in proxy.watched())

        proxy.on(Match(verb="watch", resource="configmaps"), Refuse(403), times=ALWAYS)
        proxy.drop_watches(Match(resource="configmaps"))
        wait_until("the watch is gone", lambda: "configmaps" not in proxy.watched())
        namespace("delete", "configmap", "east-to-west-heartbeat")
        wait_until(
            "the watches begin anew", lambda: operator.metric("watch_restarts_total") > 0, timeout_s=120
        )
        proxy.heal()

        wait_until("it is there again", _complete(namespace, document))
        wait_until("configmaps are watched", lambda: "configmaps" in proxy.watched())
        namespace("delete", "configmap", "east-to-west-heartbeat")
        wait_until("it is there again", _complete(namespace, document))
