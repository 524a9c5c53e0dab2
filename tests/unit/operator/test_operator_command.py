"""The command `mirrorflow-operator` has few arguments, and one error line for a missing package or an invalid setting."""

import os
import subprocess
import sys

import pytest

TIME_MAX_S = 60
# Runs the command as if MirrorFlow were installed without its extra `operator`.
WITHOUT_EXTRAS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pydantic", "pydantic_core", "yaml", "kopf", "aiohttp", "prometheus_client"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from mirrorflow_operator.__main__ import main
main()
"""


def run_command(*arguments: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command, or *code*, in a process until it ends."""
    program = ["-c", code] if code else ["-m", "mirrorflow_operator"]
    return subprocess.run(
        [sys.executable, *program, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIME_MAX_S,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("code", ["", WITHOUT_EXTRAS], ids=["installed", "without extras"])
@pytest.mark.parametrize(("argument", "start"), [("--help", "usage: mirrorflow-operator"), ("--version", "")])
def test_help_and_version_need_no_package(argument: str, start: str, code: str) -> None:
    ended = run_command(argument, code=code)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(start or "mirrorflow-operator ")


def test_the_error_names_a_missing_package_and_how_to_install_it() -> None:
    ended = run_command(code=WITHOUT_EXTRAS)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("The Python package ")
    assert ended.stderr.endswith(
        " is not installed; in MirrorFlow's folder, run pip install '.[operator]'.\n"
    )
    assert ended.stderr.count("\n") == 1


def test_an_invalid_setting_is_one_error_line() -> None:
    ended = run_command(MIRRORFLOW_WORKERS="many")

    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "MIRRORFLOW_WORKERS" in ended.stderr
