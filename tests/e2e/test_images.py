"""The images are small and run with any user id and a read-only file system."""

import json
from collections.abc import Callable

import pytest

from tests.e2e.story import restarts
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.images import DOCKERFILE, TARGETS, VERSION, build
from tests.harness.kubernetes.stage import WAIT_S, Stage

IMAGES = (*TARGETS, "cli")
MOST_MB = {"operator": 220, "replicator": 200, "console": 280, "cli": 290, "seed": 650}
USER_ID = 1_000_730_000  # as OpenShift chooses them, with a range for each namespace
ALL_LOADED = ("operator", "console", "cli")  # the other images leave extras out
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
@pytest.mark.parametrize("target", IMAGES)
def test_an_image_is_small(target: str):
    """The limit applies to the uncompressed image with its base image."""
    assert build(target, version=VERSION).size_bytes < MOST_MB[target] * 1_000_000


@pytest.mark.parametrize("target", IMAGES)
def test_an_image_runs_with_any_user_id_and_contains_no_compiler(
    stage: Stage, target: str, request: pytest.FixtureRequest
):
    """The modules of the image load, and none of its files is writable. It has neither build tools nor pip's cache.

    Parts of the Kubernetes client are removed from some images, so all of their modules are loaded.
    """
    if target == "seed":
        request.getfixturevalue("seed_image")
    if target in {"console", "cli"}:
        stage.release.load_images(target)
    program = (
        f"import glob, os, shutil, importlib, importlib.metadata, pkgutil, mirrorflow_{target}.__main__\n"
        f"assert os.getuid() == {USER_ID}\n"
        "assert not os.access('/opt/mirrorflow', os.W_OK) and not os.access('/', os.W_OK)\n"
        f"found = [name for name in {UNWANTED!r} if shutil.which(name)]\n"
        "assert not found, found\n"
        "assert not glob.glob('/*/.cache')\n"
        f"package = mirrorflow_{target}\n"
        f"modules = pkgutil.walk_packages(package.__path__, package.__name__ + '.') if {target in ALL_LOADED} else ()\n"
        "for module in modules:\n"
        "    importlib.import_module(module.name)\n"
        "print(importlib.metadata.version('mirrorflow'))\n"
    )
    stage.apply(_pod(target, ["python", "-W", "error::ImportWarning", "-c", program]))
    name = f"image-{target}"

    def ended() -> str:
        phase = str(stage.kubectl.get("pod", name)["status"]["phase"])
        return phase if phase in {"Succeeded", "Failed"} else ""

    phase = wait_until("the container has ended", ended, timeout_s=WAIT_S, poll_s=0.2)
    log_text = stage.kubectl("logs", name)
    stage.kubectl("delete", "pod", name, "--wait=false")

    assert (phase, log_text.strip()) == ("Succeeded", VERSION)


def test_pods_run_as_the_user_of_the_image(stage: Stage, ready_flow: Callable[..., str]):
    """Neither the chart nor a plan sets a user id.

    The image's id applies, and a platform may choose a different one.
    """
    flow = ready_flow("user", "orders.user")
    pods = [*stage.release.operators(), *stage.pods(flow)]

    contexts_with_user = [
        json.dumps(part.get("securityContext", {}))
        for pod in pods
        for part in (pod["spec"], *pod["spec"]["containers"])
        if "runAsUser" in part.get("securityContext", {})
    ]

    assert contexts_with_user == []
    assert restarts(pods) == 0
    assert "USER 65532:65532" in DOCKERFILE.read_text()
