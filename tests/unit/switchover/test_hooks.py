"""The environment of hooks, and the errors of hooks that fail."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from mirrorflow_kafka.client.cancellation import cancel_and_wait
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


# Scripts that run a tool: one waits for it, as most do, the other leaves it behind.
TOOL = """sh -c 'printf "begun " > "$0"; until test -e "$0.go"; do sleep 0.02; done; printf acted >> "$0"' "$0" """
WAITING, LEAVING = f"{TOOL}; true", f"{TOOL} 2> /dev/null &"
WITHIN_S = 30.0


def wait_until(route: Path, text: str) -> None:
    end_s = time.monotonic() + WITHIN_S
    while not (route.exists() and route.read_text() == text):
        assert time.monotonic() < end_s, f"{route} does not have: {text}"
        time.sleep(0.01)


def go(route: Path) -> None:
    """Lets a tool act that runs."""
    route.with_name(f"{route.name}.go").touch()


def test_processes_that_a_hook_has_started_are_stopped_with_it(tmp_path: Path):
    """A tool that closes a route must not close it after the lift."""
    route = tmp_path / "route"

    async def stop() -> None:
        settings = HookSettings(("sh", "-c", WAITING, str(route)), 60)
        hook = asyncio.create_task(run_hook(settings, HookAction.FENCE, VARIABLES))
        await asyncio.to_thread(wait_until, route, "begun ")
        await cancel_and_wait(hook)

    asyncio.run(stop())
    go(route)
    time.sleep(1.2)

    assert "begun " == route.read_text()


def test_processes_that_a_successful_hook_leaves_are_not_stopped(tmp_path: Path):
    """Such as a proxy that it has started."""
    route = tmp_path / "route"

    run("sh", "-c", LEAVING, str(route))
    go(route)

    wait_until(route, "begun acted")


def test_the_error_names_a_missing_hook():
    with pytest.raises(HookFailedError, match=r"The hook \./missing .* No such file"):
        run("./missing")


def test_a_command_with_a_null_character_is_refused_before_anything_changes():
    """No program takes such an argument. An error of another class would end the process while writes are refused."""
    hook = HookSettings(("sh", "-c", "true\0"), 1)

    assert "command: an argument has a null character" in asyncio.run(hook.problem())
    with pytest.raises(HookFailedError, match="null"):
        asyncio.run(run_hook(hook, HookAction.LIFT, VARIABLES))
