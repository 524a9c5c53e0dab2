"""The environment sets the log level and the log format of a process."""

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


def log_lines(**environment: str) -> list[str]:
    """Returns the lines on stderr of a process with this environment."""
    done = subprocess.run(
        [sys.executable, "-c", LOGS], env=environment, capture_output=True, text=True, check=False
    )
    return done.stderr.splitlines()


def test_the_default_is_text_at_level_info() -> None:
    lines = log_lines()
    assert lines[0].endswith(" INFO mirrorflow.task more")
    assert lines[-1] == "ValueError: wrong"


def test_json_logs_have_one_object_per_line() -> None:
    entries = [
        json.loads(line) for line in log_lines(MIRRORFLOW_LOG_FORMAT="json", MIRRORFLOW_LOG_LEVEL="debug")
    ]
    assert ["DEBUG", "INFO", "ERROR"] == [entry["level"] for entry in entries]
    assert "more\nthan one line" == entries[1]["message"]
    assert entries[2]["exception"].endswith("ValueError: wrong")
    assert all(entry["time"].endswith("Z") and entry["logger"].startswith("mirrorflow") for entry in entries)


@pytest.mark.parametrize("variable", ["MIRRORFLOW_LOG_LEVEL", "MIRRORFLOW_LOG_FORMAT"])
def test_an_unknown_level_or_format_ends_the_process_with_status_2(variable: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mirrorflow_replicator", "standalone", "a", "b"],
        env={variable: "loud"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 2 == done.returncode
    assert f"{variable}={'LOUD' if variable.endswith('LEVEL') else 'loud'} is no" in done.stderr
