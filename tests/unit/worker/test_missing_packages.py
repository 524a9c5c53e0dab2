"""`mirrorflow-replicator` names a missing Python package and ends without a traceback."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mirrorflow_replicator.__main__ import PACKAGES

ROOT = Path(__file__).parents[3]
WAIT_S = 300.0
# Runs each command line in one process, and prints its status, output and errors.
WITHOUT = """
import contextlib, io, json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from mirrorflow_replicator.__main__ import main

for line in sys.argv[2:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(line.split())
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


def run_without(module: str, *lines: str) -> list[list[object]]:
    """Returns the status, output and errors of each command line if *module* is not installed."""
    command = [sys.executable, "-c", WITHOUT, module, *lines]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("module", "package"), PACKAGES.items(), ids=PACKAGES)
def test_the_error_names_a_missing_package(module: str, package: str) -> None:
    """This holds for each command. `--help` needs no package."""
    (status, text, errors), *forms = run_without(module, "--help", "mm2 x", "standalone x y", "distributed x")

    assert (0, "") == (status, errors)
    assert str(text).startswith("usage: mirrorflow-replicator")
    sentence = f"The Python package {package} is not installed; in MirrorFlow's folder: pip install '.[replicator]'.\n"
    assert [[2, "", sentence]] * 3 == forms


def test_the_error_of_a_task_process_names_a_missing_package() -> None:
    ((status, _, errors),) = run_without("kafka", "task")

    assert status == 2
    assert "The Python package kafka-python is not installed" in str(errors)
    assert "Traceback" not in str(errors)


def test_the_checked_packages_are_those_of_the_replicator_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        re.split(r"[<>=]", requirement)[0] for requirement in project["optional-dependencies"]["replicator"]
    }

    assert wanted == set(PACKAGES.values())
