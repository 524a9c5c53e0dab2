"""A process logs at the level and in the format that its environment names, or says that it names none."""

import json
import subprocess
import sys

import pytest

LOGS = """
import logging, os
from mirrorflow_replicator import logs
logs.set_up(os.environ)
logging.getLogger("mirrorflow.task").debug("fine")
logging.getLogger("mirrorflow.task").info("more\\nthan %s", "one line")
try:
    raise ValueError("wrong")
except ValueError:
    logging.getLogger("mirrorflow").exception("failed")
"""


def logged(**environment: str) -> list[str]:
    """The lines on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", LOGS], env=environment, capture_output=True, text=True, check=False
    )
    return done.stderr.splitlines()


def test_text_from_info_on_is_the_default() -> None:
    lines = logged()
    assert lines[0].endswith(" INFO mirrorflow.task more")
    assert lines[-1] == "ValueError: wrong"


def test_json_is_an_object_a_line() -> None:
    said = [json.loads(line) for line in logged(MIRRORFLOW_LOG_FORMAT="json", MIRRORFLOW_LOG_LEVEL="debug")]
    assert ["DEBUG", "INFO", "ERROR"] == [one["level"] for one in said]
    assert "more\nthan one line" == said[1]["message"]
    assert said[2]["exception"].endswith("ValueError: wrong")
    assert all(one["time"].endswith("Z") and one["logger"].startswith("mirrorflow") for one in said)


@pytest.mark.parametrize("variable", ["MIRRORFLOW_LOG_LEVEL", "MIRRORFLOW_LOG_FORMAT"])
def test_what_is_no_choice_ends_the_process_with_2(variable: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mirrorflow_replicator", "standalone", "a", "b"],
        env={variable: "loud"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 2 == done.returncode
    assert f"{variable}={'LOUD' if variable.endswith('LEVEL') else 'loud'} is no" in done.stderr
