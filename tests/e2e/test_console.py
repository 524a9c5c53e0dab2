"""Both forms of the console in a real browser, on a real node.

`mirrorflow ui --context` reads pods through port-forwards of the API server and a kubelet. The chart's console runs in
a pod of its own image, and reads pods whose NetworkPolicies allow it.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.story import wait_for_records
from tests.harness.browser import ABSENT, chromium, opened_page, serious_violations, started_browser
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.images import VERSION, build
from tests.harness.kubernetes.installation import CONTROL
from tests.harness.kubernetes.release import NAMESPACE
from tests.harness.kubernetes.stage import FLOWS, WAIT_S, Stage
from tests.integration.console.conftest import served_console
from tests.integration.kafka.groups import put_group
from tests.unit.console.test_job_views import with_keys

WAIT_MS = 1000 * WAIT_S
# A role for users who may see the flows of a namespace, as in docs/console.md.
VIEWER = "viewer"
READS_PROGRESS = "mirrorflow.io/reads-progress"
CLAIM = "verifications"
USER_ID = 65532  # of drivers and of the console, as their images have it


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip(ABSENT)
    with started_browser() as browser_:
        yield browser_


def test_pages_of_a_context_show_what_the_pods_report_through_port_forwards(
    stage: Stage,
    make_flow: Callable[..., str],
    browser: Browser,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The list shows what the resource's status has. The pages of the flow show its partitions and groups.

    The console is a separate process, because a port-forward of the Kubernetes package may end its thread with an
    error.
    """
    topic = stage.east.create_topic("orders.console", partitions=2)
    put_group(stage.east, "readers", {(topic, 0): 0})
    flow = make_flow("console", [topic])
    stage.wait_for(flow, "Ready")
    load(stage.east, topic, 100)
    wait_for_records(stage, f"{flow}.{topic}", 100)
    kubeconfig = json.loads(stage.kubectl("config", "view", "--flatten", "--raw", "--output=json"))
    for context in kubeconfig["contexts"]:
        context["context"]["namespace"] = FLOWS
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    with (
        served_console(tmp_path, "--context", kubeconfig["current-context"]) as url,
        opened_page(browser) as page,
    ):
        page.goto(url)
        expect(page.get_by_role("link", name=flow, exact=True)).to_be_visible(timeout=WAIT_MS)
        assert serious_violations(page) == []
        key = f"{kubeconfig['current-context']}|{FLOWS}~{flow}"
        page.goto(f"{url}/partitions?{urlencode({'flow': key})}")
        for number in range(2):
            row = page.get_by_role("row").filter(has_text=f"{topic}-{number}")
            expect(row).to_contain_text("copying", timeout=WAIT_MS)
        page.goto(f"{url}/groups?{urlencode({'flow': key})}")
        expect(page.get_by_role("link", name="readers", exact=True)).to_be_visible(timeout=WAIT_MS)
        assert serious_violations(page) == []


@contextmanager
def forwarded(stage: Stage, folder: Path) -> Iterator[str]:
    """Yields the address of the console's Service, through `kubectl port-forward`."""
    log = folder / "port-forward.log"
    command = [
        str(CONTROL / "kubectl"),
        f"--kubeconfig={stage.kubectl.kubeconfig}",
        f"--namespace={NAMESPACE}",
    ]
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [*command, "port-forward", "service/mirrorflow-console", ":8080"],
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            port = wait_until(
                "the port is forwarded",
                lambda: re.search(r"127\.0\.0\.1:(\d+) ->", log.read_text()),
                timeout_s=WAIT_S,
            )
            assert port is not None
            yield f"http://127.0.0.1:{port[1]}"
        finally:
            process.kill()


@contextmanager
def installed_console(stage: Stage, **values: Any) -> Iterator[None]:
    """Installs the console by the chart, and its image; afterwards the release has none again."""
    stage.release.load_images("console")
    stage.release.kubectl("label", "namespace", NAMESPACE, f"{READS_PROGRESS}=true", "--overwrite")
    try:
        stage.release.upgrade(console={"enabled": True, **values})
        yield
    finally:
        stage.release.upgrade()
        stage.release.kubectl("label", "namespace", NAMESPACE, f"{READS_PROGRESS}-")


def token_of_viewer(stage: Stage, name: str = VIEWER) -> str:
    """Returns a token of the ServiceAccount *name*, which may get the flows, and nothing else."""
    stage.kubectl("create", "serviceaccount", name)
    stage.kubectl("create", "role", name, "--verb=get", "--resource=mirrorflows.mirrorflow.io")
    stage.kubectl("create", "rolebinding", name, f"--role={name}", f"--serviceaccount={FLOWS}:{name}")
    return stage.kubectl("create", "token", name).strip()


def sign_in(page: Page, url: str, token: str) -> None:
    page.goto(url)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible(timeout=WAIT_MS)


def store_result(stage: Stage, folder: Path, result: Mapping[str, Any]) -> None:
    """Creates the claim CLAIM of the release's namespace on *folder* of the node, with a result that the driver's user alone may read."""
    volume = f"{NAMESPACE}-{CLAIM}"
    capacity = {"storage": "1Mi"}
    modes = ["ReadWriteMany"]
    program = (
        "import os, pathlib\n"
        "run = pathlib.Path('/v/verified/run-nightly')\n"
        "run.mkdir(parents=True)\n"
        f"(run / 'verification.json').write_text({json.dumps(result)!r})\n"
        f"[os.chown(path, {USER_ID}, {USER_ID}) for path in (run, run / 'verification.json')]\n"
        "run.chmod(0o700)\n"
    )
    stage.cluster.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": capacity,
                "accessModes": modes,
                "storageClassName": "",
                "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"},
            },
        }
    )
    stage.release.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM},
            "spec": {
                "volumeName": volume,
                "storageClassName": "",
                "accessModes": modes,
                "resources": {"requests": capacity},
            },
        }
    )
    administrator = stage.cluster.kubectl.within("default")
    administrator.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": CLAIM},
            "spec": {
                "restartPolicy": "Never",
                "volumes": [{"name": "v", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}],
                "containers": [
                    {
                        "name": "writer",
                        "image": build("console", version=VERSION).name,
                        "command": ["python", "-c", program],
                        "securityContext": {"runAsUser": 0},
                        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    }
                ],
            },
        }
    )
    administrator(
        "wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{CLAIM}", f"--timeout={WAIT_S:g}s"
    )


def test_a_differing_record_opens_in_the_console_of_the_chart_with_its_key_for_those_who_may_see_it(
    stage: Stage, browser: Browser, tmp_path: Path
):
    """Its pod reads a claim whose result only the user of a driver may read. The right is a role of the chart, bound by hand."""
    stage.release.load_images("console")
    store_result(stage, tmp_path / "results", {**with_keys("order-17"), "flow": "verified"})
    tokens = {name: token_of_viewer(stage, name) for name in ("sees-keys", "sees-flows")}
    results = [{"namespace": FLOWS, "claimName": CLAIM}]

    with installed_console(stage, results=results), forwarded(stage, tmp_path) as url:
        stage.kubectl(
            "create",
            "rolebinding",
            "keys",
            f"--clusterrole={NAMESPACE}-mirrorflow-operator-keys",
            f"--serviceaccount={FLOWS}:sees-keys",
        )
        for name, token in tokens.items():
            with opened_page(browser) as page:
                sign_in(page, url, token)
                page.goto(f"{url}/jobs")
                heading = page.get_by_role(
                    "heading", name=f"Verification of verified in {FLOWS}, run nightly"
                )
                expect(heading).to_be_visible(timeout=WAIT_MS)
                page.get_by_text("Windows that are not equal").click()
                row = page.get_by_role("row").filter(has_text="orders-3")
                expect(row).to_contain_text("1,234 → -")
                expect(page.get_by_text("order-17")).to_have_count(int(name == "sees-keys"))
                assert serious_violations(page) == []


def test_the_console_of_the_chart_shows_its_flows_to_a_visitor_who_signs_in_with_a_token(
    stage: Stage, make_flow: Callable[..., str], browser: Browser, tmp_path: Path
):
    """Its pod runs as planned by the chart, and reads the flow's pods.

    A rollout by the operator is on the time line.
    """
    topic = stage.east.create_topic("orders.installed", partitions=2)
    flow = make_flow("installed", [topic])
    stage.wait_for(flow, "Ready")
    load(stage.east, topic, 100)
    wait_for_records(stage, f"{flow}.{topic}", 100)
    token = token_of_viewer(stage)

    with installed_console(stage), forwarded(stage, tmp_path) as url, opened_page(browser) as page:
        page.goto(url)
        assert serious_violations(page) == []
        sign_in(page, url, token)
        expect(page.get_by_role("link", name=flow, exact=True)).to_be_visible(timeout=WAIT_MS)
        page.goto(f"{url}/partitions?{urlencode({'flow': f'{FLOWS}~{flow}'})}")
        for number in range(2):
            row = page.get_by_role("row").filter(has_text=f"{topic}-{number}")
            expect(row).to_contain_text("copying", timeout=WAIT_MS)
        assert serious_violations(page) == []

        page.goto(f"{url}/history?{urlencode({'flow': f'{FLOWS}~{flow}'})}")
        events = page.get_by_role("listitem")
        expect(events.filter(has_text="Rolled out").first).to_be_visible(timeout=WAIT_MS)
        stage.patch(flow, {"restart": {"runId": "console"}})
        for text in ("The restart console began.", "The restart console has succeeded."):
            expect(events.filter(has_text=text)).to_be_visible(timeout=WAIT_MS)
        assert serious_violations(page) == []
