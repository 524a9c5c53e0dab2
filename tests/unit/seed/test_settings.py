"""Tests how the settings of a job are read and refused."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorflow_seed.__main__ import main, overrides_of
from mirrorflow_seed.errors import EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, JobSettingError
from mirrorflow_seed.settings import FlowFiles, job_of


def test_the_defaults_leave_the_master_to_spark():
    """There is no rate limit, and foreign records are refused."""
    job = job_of({})

    assert (job.master, job.bytes_per_second, job.accept_foreign, job.sample) == (
        None,
        None,
        False,
        1.0,
    )


def test_values_are_read_with_their_units():
    job = job_of(
        {"bytes.per.second": "1000", "wave.ms": "2500", "foreign.records": "Accept", "sample": "0.1"}
    )

    assert (job.bytes_per_second, job.wave_s, job.accept_foreign, job.sample) == (1000, 2.5, True, 0.1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("foreign.records", "maybe"),
        ("sample", "0"),
        ("sample", "2"),
        ("wave.ms", "soon"),
        ("run.id", ""),
        ("executors.max", "0"),
        ("bytes.per.second", "nan"),
    ],
)
def test_invalid_setting_is_refused_by_name(key: str, value: str):
    with pytest.raises(JobSettingError, match=key):
        job_of({key: value})


def test_keys_are_not_kept_without_a_folder_for_the_result():
    """The property may come from a flag, from `--set` or from a file."""
    with pytest.raises(
        JobSettingError, match=r"output\.keys: .*; name its folder with output, or with --out"
    ):
        job_of({"output.keys": "true"})
    with pytest.raises(JobSettingError, match=r"output\.keys"):
        job_of({"output.keys": "true", "output": ""})
    assert job_of({"output.keys": "false"}).output is None
    assert job_of({"output.keys": "true", "output": "/r"}).output == "/r"


def test_an_unknown_setting_is_refused_with_the_likely_name():
    with pytest.raises(JobSettingError, match=r"lagmax: .*; write lag\.max"):
        job_of({"lagmax": "1"})
    with pytest.raises(JobSettingError, match=r"docs/seeding\.md"):
        job_of({"xyzzy": "1"})
    assert job_of({"spark.anything": "1"}).extra == {"spark.anything": "1"}


def test_settings_with_secrets_in_plain_text_are_listed(tmp_path: Path):
    """References to secrets are not listed."""
    worker, source = tmp_path / "w", tmp_path / "s"
    worker.write_text("producer.ssl.key.password=${file:/secrets:key}\n")
    source.write_text('source.cluster.sasl.jaas.config=\\\n org.X required username="a" password="b";\n')

    assert FlowFiles(worker=str(worker), source=str(source)).plain_secrets() == (
        "source.cluster.sasl.jaas.config",
    )


@pytest.mark.parametrize(
    ("command", "sets", "module"),
    [
        ("verify", [], "verify.verify_driver"),
        ("verify", ["--set=archive=/x"], "archive.archive_verification"),
        ("seed", ["--set=archive=/x"], "seed.seed_driver"),
        ("export", ["--set=archive=/x"], "archive.export_driver"),
        ("restore", ["--set=archive=/x"], "archive.restore_driver"),
    ],
)
def test_each_command_runs_its_module_and_an_archive_selects_the_verification(
    command: str, sets: list[str], module: str, monkeypatch: pytest.MonkeyPatch
):
    sources: list[str] = []

    def run(files: FlowFiles, _: object) -> int:
        sources.append(files.source)
        return 0

    monkeypatch.setattr(importlib.import_module(f"mirrorflow_seed.{module}"), "run", run)

    assert main([command, "--worker=w", "--source=s", *sets]) == 0
    assert sources == ["s"]


def test_the_run_id_of_a_scheduled_run_is_the_name_of_its_job_by_default():
    """Each run then has its own folder and sample."""
    assert overrides_of({"RUN_ID": "east-to-west-verify-1"}, ["a=b=c"]) == {
        "run.id": "east-to-west-verify-1",
        "a": "b=c",
    }
    assert overrides_of({"RUN_ID": "x"}, ["run.id=2"]) == {"run.id": "2"}
    assert overrides_of({"RUN_ID": ""}, []) == overrides_of({}, []) == {}


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (OSError(28, "No space left on device"), EXIT_FAILED, "The job failed: No space left on device."),
        (TimeoutError("timed out"), EXIT_FAILED, "The job failed: timed out."),
        (FileNotFoundError(2, "No such file", "/w"), EXIT_USAGE, "/w cannot be used: No such file."),
    ],
)
def test_only_an_error_of_a_named_file_is_one_of_the_arguments(
    error: OSError,
    status: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("mirrorflow_seed.__main__._run", fail)

    assert status == main(["seed", "--worker", "/w", "--source", "/s"])
    assert f"{sentence}\n" == capsys.readouterr().err


IMPORTING = """
import signal, sys
from mirrorflow_seed import spark_session
from mirrorflow_seed.__main__ import main

class Imported:
    def __del__(self):
        signal.raise_signal(signal.{name})

class Job:
    run = print

original = spark_session.importlib.import_module

def import_module(name, package=None):
    if not name.startswith("mirrorflow_seed."):
        return original(name, package)
    Imported()
    return Job

spark_session.importlib.import_module = import_module
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background processes ignore it
sys.exit(main(["seed", "--worker", "w", "--source", "s"]))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_stops_a_job_whose_imports_ignore_exceptions(name: str) -> None:
    """As a finalizer or a callback of a weak reference does. The job would begin."""
    command = [sys.executable, "-c", IMPORTING.format(name=name)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert (EXIT_STOPPED, "", "Stopped by a signal.\n") == (ended.returncode, ended.stdout, ended.stderr)


STARTING = """
import os, signal, sys, types
job = types.ModuleType("job")
# As `spark_session` does: signals take effect when the JVM has started.
job.run = lambda *_: signal.raise_signal(signal.SIGTERM)
sys.modules["mirrorflow_seed.seed.seed_driver"] = job
from mirrorflow_seed.__main__ import main
sys.exit(main(["seed", "--worker", "w", "--source", "s"]))
"""


def test_sigterm_stops_a_job_while_spark_starts() -> None:
    """In a container, the kernel ignores SIGTERM for a process that does not handle it."""
    ended = subprocess.run(
        [sys.executable, "-c", STARTING], capture_output=True, text=True, check=False, timeout=300
    )

    assert (EXIT_STOPPED, "Stopped by a signal.\n") == (ended.returncode, ended.stderr)
