"""`mirrorflow-replicator` names a Python package that it needs and that is not installed; it does not end in a stack."""

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
# Prints for each command line, in one process, how it ends.
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


def ended(module: str, *lines: str) -> list[list[object]]:
    """Status, output and errors of each command line where *module* is not installed."""
    command = [sys.executable, "-c", WITHOUT, module, *lines]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("module", "package"), PACKAGES.items(), ids=PACKAGES)
def test_a_package_that_is_missing_is_named(module: str, package: str) -> None:
    """In each form; help needs none."""
    (status, text, errors), *forms = ended(module, "--help", "mm2 x", "standalone x y", "distributed x")

    assert (0, "") == (status, errors)
    assert str(text).startswith("usage: mirrorflow-replicator")
    sentence = f"The Python package {package} is not installed; in MirrorFlow's folder: pip install '.[replicator]'.\n"
    assert [[2, "", sentence]] * 3 == forms


def test_a_task_names_it_too() -> None:
    ((status, _, errors),) = ended("kafka", "task")

    assert status == 2
    assert "The Python package kafka-python is not installed" in str(errors)
    assert "Traceback" not in str(errors)


def test_the_packages_are_those_of_the_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=]", one)[0] for one in project["optional-dependencies"]["replicator"]}

    assert wanted == set(PACKAGES.values())
