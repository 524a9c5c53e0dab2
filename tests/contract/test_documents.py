"""Documents as a test: what they name exists, and what exists is named."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOME = ROOT / "replicator" / "mirrorflow_replicator"
MODULES = sorted([*(ROOT / "operator").rglob("*.py"), *(ROOT / "replicator").rglob("*.py")])
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
TARGET = re.compile(r"^([a-z-]+):.*##", re.MULTILINE)


def _map() -> str:
    return (ROOT / "docs" / "architecture.md").read_text().partition("## From concept to file")[2]


def _named() -> set[Path]:
    names = re.findall(r"`([\w/]+\.py)`", _map())
    return {ROOT / name if name.startswith(("operator/", "replicator/")) else HOME / name for name in names}


def test_every_module_is_on_the_map():
    """Whoever looks for a module's purpose finds it in docs/architecture.md."""
    unnamed = {path for path in MODULES if path.read_text().strip()} - _named()

    assert [] == sorted(str(path.relative_to(ROOT)) for path in unnamed)


def test_every_path_on_the_map_exists():
    """No module of docs/architecture.md is one of the past."""
    assert [] == sorted(str(path.relative_to(ROOT)) for path in _named() if not path.is_file())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
    """Each relative link of a document names a file that is there."""
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)", document.read_text())

    assert [] == [link for link in links if not (document.parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_prose_exist(document: Path):
    """What a document puts into backquotes as a path of this repository is there."""
    paths = re.findall(
        r"`((?:docs|tests|benchmarks|operator|replicator)/[\w./-]+\.\w+)`", document.read_text()
    )

    assert [] == [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(document: Path):
    """Each `make` command that a document names is one of the Makefile."""
    known = set(TARGET.findall((ROOT / "Makefile").read_text()))
    used = set(re.findall(r"(?:`|^\s*)make ([a-z-]+)", document.read_text(), re.MULTILINE))

    assert set() == used - known
