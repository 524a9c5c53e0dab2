"""The command `mirrorflow-operator`: its arguments, and its messages for a missing package or an invalid setting."""

import os
import subprocess
import sys

import pytest

TIME_MAX_S = 60
# As on a machine where MirrorFlow was installed without its extra `operator`.
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


def started(*arguments: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, which has ended."""
    how = ["-c", code] if code else ["-m", "mirrorflow_operator"]
    return subprocess.run(
        [sys.executable, *how, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIME_MAX_S,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("code", ["", WITHOUT_EXTRAS], ids=["installed", "without extras"])
@pytest.mark.parametrize(("argument", "words"), [("--help", "usage: mirrorflow-operator"), ("--version", "")])
def test_help_needs_no_package(argument: str, words: str, code: str) -> None:
    """--help works without the operator's packages."""
    ended = started(argument, code=code)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(words or "mirrorflow-operator ")


def test_a_missing_package_is_named_with_the_remedy() -> None:
    ended = started(code=WITHOUT_EXTRAS)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("The Python package ")
    assert ended.stderr.endswith(
        " is not installed; in MirrorFlow's folder, run pip install '.[operator]'.\n"
    )
    assert ended.stderr.count("\n") == 1


def test_an_invalid_setting_is_an_error_message() -> None:
    ended = started(MIRRORFLOW_WORKERS="many")

    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "MIRRORFLOW_WORKERS" in ended.stderr
