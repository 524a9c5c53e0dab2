"""The links, paths and commands in the documentation exist."""

import re
from pathlib import Path

import pytest

from mirrorflow_replicator.version import connect_version

ROOT = Path(__file__).parents[2]
MODULES = [path for folder in ("operator", "replicator") for path in (ROOT / folder).rglob("*.py")]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
FIRST_SCREEN_LINES = 20
TARGET = re.compile(r"^([a-z-]+):.*##", re.MULTILINE)


def test_modules_named_in_the_architecture_exist():
    """docs/architecture.md names a module by its file name or by a part of its path."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    known = [f"/{path.relative_to(ROOT)}" for path in MODULES]
    named = re.findall(r"(?<![\w/])(?!tests/)[a-z_]+(?:/[a-z_]+)*\.py", text)

    assert [] == [name for name in named if not any(path.endswith(f"/{name}") for path in known)]
    assert named


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_existing_files(document: Path):
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)", document.read_text())

    assert [] == [link for link in links if not (document.parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_prose_exist(document: Path):
    """Paths of the repository in backquotes are checked."""
    paths = re.findall(
        r"`((?:docs|tests|benchmarks|operator|replicator)/[\w./-]+\.\w+)`", document.read_text()
    )

    assert [] == [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_commands_exist(document: Path):
    known = set(TARGET.findall((ROOT / "Makefile").read_text()))
    used = set(re.findall(r"(?:`|^\s*)make ([a-z-]+)", document.read_text(), re.MULTILINE))

    assert set() == used - known


def test_the_version_in_the_connect_example_is_current():
    """`GET /` returns it."""
    text = (ROOT / "docs" / "connect-worker.md").read_text()
    (own,) = re.findall(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert connect_version(own) in text


def test_the_first_screen_of_the_readme_shows_the_console_in_light_and_dark():
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:FIRST_SCREEN_LINES])
    pictures = re.findall(r'(?:src|srcset)="(docs/images/console-[\w-]+\.png)"', first)

    assert {picture.removesuffix(".png").rpartition("-")[2] for picture in pictures} == {"light", "dark"}
    assert [] == [picture for picture in pictures if not (ROOT / picture).is_file()]


def test_the_page_of_a_verification_has_only_colours_of_the_console():
    page = (ROOT / "replicator" / "mirrorflow_seed" / "verify" / "result_folder.py").read_text()
    console = (ROOT / "replicator" / "mirrorflow_console" / "static" / "console.css").read_text()

    assert len(_colours(page)) > 20
    assert _colours(page) <= _colours(console)


def _colours(text: str) -> set[str]:
    """Returns the colours in *text* as `#rrggbb`."""
    short = re.findall(r"#([0-9a-f]{3})\b", text)
    return {f"#{colour}" for colour in re.findall(r"#([0-9a-f]{6})\b", text)} | {
        "#" + "".join(2 * digit for digit in colour) for colour in short
    }
