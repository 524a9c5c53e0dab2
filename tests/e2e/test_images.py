"""The images are small, and run with any user id and a read-only file system."""

import json
from collections.abc import Callable

import pytest

from tests.e2e.story import restarts
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.images import DOCKERFILE, TARGETS, VERSION, build
from tests.harness.kubernetes.stage import WAIT_S, Stage

MOST_MB = {"operator": 300, "replicator": 200, "seed": 650}
USER_ID = 1_000_730_000  # as platforms choose them that give each namespace a range of its own
UNWANTED = ("cc", "gcc", "make", "git")


def _pod(target: str, command: list[str]) -> dict[str, object]:
    image = build(target, version=VERSION).name
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"image-{target}"},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": target,
                    "image": image,
                    "command": command,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


@pytest.mark.usefixtures("stage")
@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_small(target: str):
    """Uncompressed, the base image included."""
    assert build(target, version=VERSION).size_bytes < MOST_MB[target] * 1_000_000


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_anyone_and_holds_no_compiler(
    stage: Stage, target: str, request: pytest.FixtureRequest
):
    """Its modules load, nothing of it is writable, and there is no tool to build with; nor pip's cache."""
    if target == "seed":
        request.getfixturevalue("seed_image")
    program = (
        f"import glob, os, shutil, importlib.metadata, mirrorflow_{target}.__main__\n"
        f"assert os.getuid() == {USER_ID}\n"
        "assert not os.access('/opt/mirrorflow', os.W_OK) and not os.access('/', os.W_OK)\n"
        f"found = [name for name in {UNWANTED!r} if shutil.which(name)]\n"
        "assert not found, found\n"
        "assert not glob.glob('/*/.cache')\n"
        "print(importlib.metadata.version('mirrorflow'))\n"
    )
    stage.apply(_pod(target, ["python", "-W", "error::ImportWarning", "-c", program]))
    name = f"image-{target}"

    def ended() -> str:
        phase = str(stage.kubectl.get("pod", name)["status"]["phase"])
        return phase if phase in {"Succeeded", "Failed"} else ""

    phase = wait_until("the container has ended", ended, timeout_s=WAIT_S, poll_s=0.2)
    said = stage.kubectl("logs", name)
    stage.kubectl("delete", "pod", name, "--wait=false")

    assert (phase, said.strip()) == ("Succeeded", VERSION)


def test_what_the_chart_installs_is_the_images_own_user(stage: Stage, ready_flow: Callable[..., str]):
    """Neither chart nor plan fix a user id: the image's counts, and a platform may choose another."""
    flow = ready_flow("user", "orders.user")
    pods = [*stage.release.operators(), *stage.pods(flow)]

    fixed = [
        json.dumps(part.get("securityContext", {}))
        for pod in pods
        for part in (pod["spec"], *pod["spec"]["containers"])
        if "runAsUser" in part.get("securityContext", {})
    ]

    assert fixed == []
    assert restarts(pods) == 0
    assert "USER 65532:65532" in DOCKERFILE.read_text()
