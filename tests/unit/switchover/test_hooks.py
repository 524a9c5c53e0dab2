"""The environment of hooks, and the errors of hooks that fail."""

import asyncio
import sys
from pathlib import Path

import pytest

from mirrorflow_replicator.switchover.errors import HookFailedError
from mirrorflow_replicator.switchover.hooks import HookAction, HookSettings, run_hook

VARIABLES = {"MIRRORFLOW_TO": "west"}


def run(*command: str, timeout_s: float = 60) -> None:
    asyncio.run(run_hook(HookSettings(command, timeout_s), HookAction.PROMOTE, VARIABLES))


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_the_environment_of_a_hook_has_its_action_and_the_members(tmp_path: Path):
    code = "import os, sys; open(sys.argv[1], 'w').write(os.environ['MIRRORFLOW_ACTION'] + ' ' + os.environ['MIRRORFLOW_TO'])"

    run(*python(code), str(tmp_path / "out"))

    assert "promote west" == (tmp_path / "out").read_text()


def test_a_hook_that_fails_is_reported_with_its_last_line():
    with pytest.raises(
        HookFailedError, match=r"has ended with status 3 \(action promote\): no such name\."
    ) as caught:
        run(*python("import sys; sys.stderr.write('trying\\nno such name\\n'); sys.exit(3)"))

    assert "trying" not in str(caught.value)


def test_a_hook_that_does_not_end_is_stopped():
    with pytest.raises(HookFailedError, match="has not ended in time and was stopped"):
        run(*python("import time; time.sleep(600)"), timeout_s=0.2)


def test_the_error_names_a_missing_hook():
    with pytest.raises(HookFailedError, match=r"The hook \./missing .* No such file"):
        run("./missing")
