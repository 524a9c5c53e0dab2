"""Tracked files are independent of a machine. They contain no generated files, private addresses or local paths."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).relative_to(ROOT)
# Hosts that files may contain: those of projects, names reserved for examples (RFC 2606), and the API server of a
# cluster.
PUBLIC_HOSTS = re.compile(
    r"(.+\.)?(apache\.org|kafka\.apache\.org|w3\.org|python\.org|prometheus\.io|kubernetes\.io|mirrorflow\.io|strimzi\.io"
    # Hosts at which clouds issue tokens.
    r"|amazonaws\.com|googleapis\.com|google\.internal|microsoftonline\.com|windows\.net|169\.254\.(169\.254|170\.2|170\.23)"
    r"|github\.com|ietf\.org|json-schema\.org|rfc-editor\.org|example(\.\w+)?)|kubernetes\.default\.svc|127\.0\.0\.1|0\.0\.0\.0|localhost"
)
# Files of other projects, as published, with their licences.
VENDORED = re.compile(r"(^|/)(axe|uPlot)\.[\w.]*$")
URL = re.compile(r"https?://([\w.-]+\.[\w.-]+)")
MACHINE = re.compile(r"(?<![\w.])/(?:root|home|work|Users)/\w")
GENERATED = re.compile(
    r"(^|/)(\.venv|\.cache|\.[a-z_]+_cache|\.hypothesis|dist|__pycache__)/|\.(pyc|egg-info|log|jar|class)$"
)


@cache
def _tracked() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git work tree: nothing is tracked here")
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


@cache
def _lines() -> list[tuple[Path, int, str]]:
    return [
        (path, number, line)
        for path in _tracked()
        if path not in {HERE, Path("LICENSE")} and not VENDORED.search(str(path))
        for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1)
    ]


def test_generated_files_are_not_tracked():
    assert [] == [str(path) for path in _tracked() if GENERATED.search(str(path))]


def test_no_file_contains_a_private_address():
    """Registries, proxies and mirrors are configured on a machine, never in the repository."""
    foreign = [
        f"{path}:{number} {host}"
        for path, number, line in _lines()
        for host in URL.findall(line)
        if not PUBLIC_HOSTS.fullmatch(host.rstrip("."))
    ]

    assert [] == foreign


def test_no_file_contains_a_path_of_one_machine():
    """A path below a home or work folder exists only on one machine."""
    assert [] == [f"{path}:{number}" for path, number, line in _lines() if MACHINE.search(line)]


def test_files_have_no_licence_headers():
    """The licence is in LICENSE."""
    marks = re.compile(r"SPDX-License|Licensed under the|Copyright \(c\)|Copyright \d{4}", re.IGNORECASE)

    assert [] == [f"{path}:{number}" for path, number, line in _lines() if marks.search(line)]


def test_each_file_of_another_project_has_its_licence_beside_it():
    """This also holds for installed files, because a wheel has all files of the console's folder."""
    published = {path for path in _tracked() if VENDORED.search(str(path))}
    licences = {path for path in published if path.suffix == ".LICENSE"}

    assert {path.name for path in licences} == {"axe.LICENSE", "uPlot.LICENSE"}
    for path in published:
        licence = path.parent / f"{path.name.partition('.')[0]}.LICENSE"
        assert licence in licences
        assert re.search("MIT|Mozilla Public License", (ROOT / licence).read_text())


def test_scripts_of_the_console_need_no_node_toolchain():
    """Browsers receive the tracked files. Nothing is built, bundled or fetched by npm, yarn or pnpm."""
    toolchain = re.compile(
        r"(^|/)(package(-lock)?\.json|yarn\.lock|pnpm-lock\.yaml|(webpack|vite|rollup|babel|tsconfig)[\w.]*)$"
        r"|(^|/)node_modules/|\.(ts|tsx|jsx|scss|less|map)$"
    )

    assert [] == [str(path) for path in _tracked() if toolchain.search(str(path))]
    commands = re.compile(r"\b(npm|npx|yarn|pnpm|esbuild)\b")
    builds = ("Makefile", "Dockerfile", "pyproject.toml", ".ci/run")
    assert [] == [
        f"{path}:{number}" for path, number, line in _lines() if str(path) in builds and commands.search(line)
    ]


def test_the_changelog_begins_with_the_current_version():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None

    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert version[1] == heads[0]


def test_the_chart_installs_the_current_version():
    """The tags of its images and both versions of the chart are the current version."""
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    chart = (ROOT / "charts" / "mirrorflow" / "Chart.yaml").read_text()

    assert {version[1]} == set(re.findall(r'^(?:version|appVersion): "?([^"\s]+)', chart, re.MULTILINE))
    images = dict(re.findall(r"image: mirrorflow/(\w+):(\S+)", chart))
    assert images == dict.fromkeys(("operator", "replicator", "seed"), version[1])


def test_the_chart_names_the_previous_release():
    """After an upgrade, flows keep running that release."""
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    chart = (ROOT / "charts" / "mirrorflow" / "Chart.yaml").read_text()
    before = heads[1] if len(heads) > 1 else ""

    assert f'mirrorflow.io/previous-version: "{before}"' in chart


def test_each_dependency_has_a_reason():
    """The reasons are in docs/decisions/002-dependencies.md."""
    text = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    extras = text.partition("\n[")[0]
    names = {name for name in re.findall(r'"([A-Za-z0-9-]+)(?:[<>=].*)?"', extras) if name != "mirrorflow"}
    reasons = (ROOT / "docs" / "decisions" / "002-dependencies.md").read_text()

    assert [] == sorted(name for name in names if name not in reasons)
    assert "kafka-python" in names
