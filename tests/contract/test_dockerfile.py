"""The Dockerfile builds on any machine.

It starts from official images, and copies only files that .dockerignore includes.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "Dockerfile").read_text().splitlines()
BASE = re.compile(r"python:3\.\d+-slim(@sha256:[0-9a-f]{64})?")


def _base() -> str:
    return next(argument for argument in _after("ARG") if argument.startswith("PYTHON=")).removeprefix(
        "PYTHON="
    )


def _after(instruction: str) -> list[str]:
    """Returns the arguments of each *instruction*."""
    return [line.removeprefix(instruction).strip() for line in LINES if line.startswith(f"{instruction} ")]


def test_each_image_starts_from_the_same_official_python_image():
    """Files built in one stage run in another."""
    stages = [re.split(r" AS ", argument) for argument in _after("FROM")]
    names = {stage[1] for stage in stages}

    foreign = {stage[0] for stage in stages} - names

    assert foreign == {"$PYTHON"}
    assert BASE.fullmatch(_base())
    assert {"operator", "replicator", "seed", "cli", "console"} <= names


def test_a_release_pins_its_base_image_by_digest():
    """A tag of Docker Hub can change. `make pin` writes the digest."""
    heading = re.findall(r"^## .*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]

    assert "(unreleased)" in heading or "@sha256:" in _base(), "run `make pin` before a release"


def test_images_have_the_pinned_python_packages_of_the_tests():
    """Otherwise a rebuild of a release may have different versions."""
    installed = [line for line in LINES if "pip " in line and "'.[" in line]

    assert len(installed) == 5
    assert all("--constraint constraints.txt" in line for line in installed)


def test_the_seed_image_copies_java_and_installs_nothing():
    """The files come from an earlier stage. No package manager runs in this one."""
    last = "\n".join(LINES).rsplit("\nFROM ", 1)[1]

    assert last.startswith("base AS seed\n")
    assert "COPY --from=java /opt/java /opt/java" in last
    assert "apt" not in last
    assert "RUN" not in last


def test_dockerignore_includes_exactly_the_copied_files():
    """The other files of the folder, such as keys and caches, are never sent to a builder."""
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        name
        for arguments in _after("COPY")
        if not arguments.startswith("--from")
        for name in arguments.split()[:-1]
    }

    assert {name.split("/")[0] for name in copied} == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_containers_run_as_a_numeric_user_id():
    """With runAsNonRoot, a kubelet can check only numeric user ids."""
    users = _after("USER")

    assert users
    assert all(re.fullmatch(r"[1-9]\d+:[1-9]\d+", user) for user in users)


def test_the_dependency_layer_has_a_folder_for_each_package_of_the_wheel():
    """Dependencies are installed before the wheel. Empty folders replace the packages."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]["packages"]
    folders = [str(path.parent.relative_to(ROOT)) for path in ROOT.glob("*/mirrorflow_*/__init__.py")]
    empty = re.findall(
        r"\S+/mirrorflow_\w+", (ROOT / "Dockerfile").read_text().split("RUN mkdir -p", 1)[1].split("\n\n")[0]
    )

    assert sorted(folders) == sorted(packages) == sorted(empty)
