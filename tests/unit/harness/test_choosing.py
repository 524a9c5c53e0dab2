"""kind is chosen only where it costs no waiting: its engine answers at once, and has the image of a node."""

import os
from pathlib import Path

import pytest

from tests.harness.kafka.processes import HarnessError
from tests.harness.kubernetes import kind
from tests.harness.kubernetes.choosing import choice
from tests.harness.kubernetes.kind import node_image

LONG_S = 86_400  # a wait for its end would be a hang


@pytest.fixture(autouse=True)
def nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no Docker of this machine's own is found."""
    monkeypatch.delenv("CLUSTER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def _docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A client that answers as *script* says."""
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


def test_without_docker_it_is_a_node_of_ours():
    assert choice() == "node"


def test_a_client_whose_engine_does_not_run_is_no_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _docker(tmp_path, monkeypatch, "echo Cannot connect to the Docker daemon >&2; exit 1")

    assert choice() == "node"


def test_an_engine_that_does_not_answer_is_waited_for_for_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _docker(tmp_path, monkeypatch, f"exec sleep {LONG_S}")
    monkeypatch.setattr(kind, "ANSWER_WAIT_S", 0.2)

    assert choice() == "node"


def test_an_engine_without_the_image_of_a_node_is_not_made_to_pull_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _with_images(tmp_path, monkeypatch)

    assert choice() == "node"


def test_where_the_image_is_at_hand_it_is_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _with_images(tmp_path, monkeypatch, "v1.34.0")

    assert choice() == "kind"


def test_the_newest_of_several_images_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _with_images(tmp_path, monkeypatch, "v1.9.11", "v1.34.0", "<none>", "latest", "v1.33.4")

    assert node_image() == "kindest/node:v1.34.0"


@pytest.mark.parametrize("wanted", ["kind", "node"])
def test_who_names_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str):
    _with_images(tmp_path, monkeypatch, *(["v1.34.0"] if wanted == "node" else []))
    monkeypatch.setenv("CLUSTER", wanted)

    assert choice() == wanted


def test_a_word_for_neither_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLUSTER", "minikube")

    with pytest.raises(HarnessError, match="minikube"):
        choice()
