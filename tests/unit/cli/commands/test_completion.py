"""`mirrorflow completion` prints scripts that shells accept and that complete every command and flag."""

import shutil
import subprocess
from pathlib import Path

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.commands import COMMANDS

WAIT_S = 300.0
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_mirrorflow
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Returns the completion script for the shell of the test."""
    assert 0 == main(["completion", request.param])
    path = tmp_path / "completion"
    path.write_text(capsys.readouterr().out)
    return path


def completions(script: Path, *words: str, folder: Path | None = None) -> set[str]:
    """Returns the completions that bash offers for the last of *words*."""
    command = ["bash", "-c", BASH, "bash", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True, cwd=folder)
    assert "" == done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_commands_flags_choices_and_files(script: Path, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").touch()

    assert set(COMMANDS) == completions(script, "mirrorflow", "")
    assert {"validate", "verify"} == completions(script, "mirrorflow", "v")
    assert {"--from", "--from-config", "--from-alias"} == completions(script, "mirrorflow", "run", "--from")
    assert {"Prefix", "Identity"} == completions(script, "mirrorflow", "plan", "--naming", "")
    assert {"flow.yaml"} == completions(script, "mirrorflow", "run", "-f", "flo", folder=tmp_path)


@pytest.mark.parametrize("script", ["bash", "zsh", "fish"], indirect=True)
def test_each_shell_parses_its_script(script: Path, request: pytest.FixtureRequest) -> None:
    shell = request.node.callspec.params["script"]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert (0, "") == (done.returncode, done.stderr)
