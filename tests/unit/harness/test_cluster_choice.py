"""The tests use kind only if Docker responds quickly and has the image of a node."""

import os
from pathlib import Path

import pytest

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes import kind
from tests.harness.kubernetes.choosing import choice
from tests.harness.kubernetes.kind import node_image

LONG_S = 86_400  # longer than any test waits


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes CLUSTER and any Docker from the environment."""
    monkeypatch.delenv("CLUSTER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def _docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a stub of the Docker client that runs *script* on PATH."""
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")


def _with_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *tags: str) -> None:
    printed = " ".join(f"'{tag}'" for tag in tags) or "''"
    _docker(
        tmp_path,
        monkeypatch,
        f"case $1 in version) echo 28.2.2 ;; image) printf '%s\\n' {printed} ;; esac",
    )


def test_a_node_is_chosen_without_docker():
    assert choice() == "node"


def test_a_node_is_chosen_if_the_docker_daemon_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _docker(tmp_path, monkeypatch, "echo Cannot connect to the Docker daemon >&2; exit 1")

    assert choice() == "node"


def test_a_node_is_chosen_if_the_docker_daemon_does_not_respond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _docker(tmp_path, monkeypatch, f"exec sleep {LONG_S}")
    monkeypatch.setattr(kind, "RESPONSE_WAIT_S", 0.2)

    assert choice() == "node"


def test_a_node_is_chosen_if_docker_has_no_image_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _with_images(tmp_path, monkeypatch)

    assert choice() == "node"


def test_kind_is_chosen_if_docker_has_the_image_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _with_images(tmp_path, monkeypatch, "v1.34.0")

    assert choice() == "kind"


def test_the_newest_image_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _with_images(tmp_path, monkeypatch, "v1.9.11", "v1.34.0", "<none>", "latest", "v1.33.4")

    assert node_image() == "kindest/node:v1.34.0"


@pytest.mark.parametrize("requested", ["kind", "node"])
def test_cluster_variable_overrides_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requested: str
):
    _with_images(tmp_path, monkeypatch, *(["v1.34.0"] if requested == "node" else []))
    monkeypatch.setenv("CLUSTER", requested)

    assert choice() == requested


def test_an_unknown_value_of_cluster_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLUSTER", "minikube")

    with pytest.raises(HarnessError, match="minikube"):
        choice()
