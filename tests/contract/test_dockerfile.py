"""The Dockerfile builds anywhere: it begins with official images and copies what .dockerignore lets through."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "Dockerfile").read_text().splitlines()
BASE = re.compile(r"python:3\.\d+-slim(@sha256:[0-9a-f]{64})?")


def _base() -> str:
    return next(one for one in _after("ARG") if one.startswith("PYTHON=")).removeprefix("PYTHON=")


def _after(word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in LINES if line.startswith(f"{word} ")]


def test_every_image_begins_with_an_official_python_of_a_named_version():
    """And with the same one: what is built in one stage runs in another."""
    stages = [re.split(r" AS ", one) for one in _after("FROM")]
    names = {stage[1] for stage in stages}

    foreign = {stage[0] for stage in stages} - names

    assert foreign == {"$PYTHON"}
    assert BASE.fullmatch(_base())
    assert {"operator", "replicator", "seed", "cli", "console"} <= names


def test_a_release_names_its_base_image_by_digest():
    """A tag of Docker Hub is another image next week; `make pin` writes the digest."""
    heading = re.findall(r"^## .*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]

    assert "(unreleased)" in heading or "@sha256:" in _base(), "run `make pin` before a release"


def test_python_packages_of_images_are_those_that_the_tests_ran_with():
    """Else a rebuild of a release may have other versions than the release."""
    installed = [line for line in LINES if "pip " in line and "'.[" in line]

    assert len(installed) == 5
    assert all("--constraint constraints.txt" in line for line in installed)


def test_each_spark_runs_on_a_java_of_its_own():
    """What runs in the image is what was made in a stage before it; no package manager has been there."""
    last = "\n".join(LINES).rsplit("\nFROM ", 1)[1]

    assert last.startswith("base AS seed\n")
    assert "COPY --from=java /opt/java /opt/java" in last
    assert "apt" not in last
    assert "RUN" not in last


def test_what_is_copied_is_let_through():
    """The rest of the folder, keys and caches included, never reaches a builder."""
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {name for one in _after("COPY") if not one.startswith("--from") for name in one.split()[:-1]}

    assert {name.split("/")[0] for name in copied} == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_containers_run_as_a_user_that_is_a_number():
    """With runAsNonRoot, a kubelet can check numeric user ids only."""
    users = _after("USER")

    assert users
    assert all(re.fullmatch(r"[1-9]\d+:[1-9]\d+", one) for one in users)


def test_every_image_has_every_package_of_the_wheel():
    """One wheel is installed into each; the layer of dependencies is built before it, with empty folders of the same names."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]["packages"]
    folders = [str(path.parent.relative_to(ROOT)) for path in ROOT.glob("*/mirrorflow_*/__init__.py")]
    empty = re.findall(
        r"\S+/mirrorflow_\w+", (ROOT / "Dockerfile").read_text().split("RUN mkdir -p", 1)[1].split("\n\n")[0]
    )

    assert sorted(folders) == sorted(packages) == sorted(empty)
