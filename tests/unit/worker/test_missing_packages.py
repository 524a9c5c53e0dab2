"""`mirrorflow-replicator` names a Python package that it needs and that is not installed; it does not end in a stack."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mirrorflow_replicator.__main__ import PACKAGES

ROOT = Path(__file__).parents[3]
WAIT_S = 300.0
WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from mirrorflow_replicator.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


def ended(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The process with *arguments* where *module* is not installed."""
    command = [sys.executable, "-c", WITHOUT, module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.mark.parametrize("form", ["mm2", "standalone", "distributed"])
@pytest.mark.parametrize(("module", "package"), PACKAGES.items(), ids=PACKAGES)
def test_a_package_that_is_missing_is_named(module: str, package: str, form: str) -> None:
    done = ended(module, form, *(["x", "y"] if form == "standalone" else ["x"]))

    sentence = f"The Python package {package} is not installed; in MirrorFlow's folder: pip install '.[replicator]'.\n"
    assert (2, "", sentence) == (done.returncode, done.stdout, done.stderr)


def test_a_task_names_it_too() -> None:
    done = ended("kafka", "task")

    assert done.returncode == 2
    assert "The Python package kafka-python is not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_needs_no_package() -> None:
    assert [ended(module, "--help").returncode for module in PACKAGES] == [0] * len(PACKAGES)


def test_the_packages_are_those_of_the_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=]", one)[0] for one in project["optional-dependencies"]["replicator"]}

    assert wanted == set(PACKAGES.values())
