"""Tests the settings of a job, and which values it refuses."""

import importlib

import pytest

from mirrorflow_seed.__main__ import main, overrides_of
from mirrorflow_seed.errors import JobSettingError
from mirrorflow_seed.settings import FlowFiles, job_of


def test_empty_job_runs_locally():
    """On all cores, without a rate limit; foreign records are refused."""
    job = job_of({})

    assert (job.master, job.bytes_per_second, job.accept_foreign, job.sample) == (
        "local[*]",
        None,
        False,
        1.0,
    )


def test_values_are_read_with_their_units():
    """Bytes as bytes, milliseconds as seconds."""
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
    """Before anything starts."""
    with pytest.raises(JobSettingError, match=key):
        job_of({key: value})


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
def test_named_archive_replaces_the_source(
    command: str, sets: list[str], module: str, monkeypatch: pytest.MonkeyPatch
):
    """One module runs each command."""
    done: list[str] = []

    def run(files: FlowFiles, _: object) -> int:
        done.append(files.source)
        return 0

    monkeypatch.setattr(importlib.import_module(f"mirrorflow_seed.{module}"), "run", run)

    assert main([command, "--worker=w", "--source=s", *sets]) == 0
    assert done == ["s"]


def test_scheduled_run_is_named_after_its_job_by_default():
    """So that each has a folder, and a sample, of its own."""
    assert overrides_of({"RUN_ID": "east-to-west-verify-1"}, ["a=b=c"]) == {
        "run.id": "east-to-west-verify-1",
        "a": "b=c",
    }
    assert overrides_of({"RUN_ID": "x"}, ["run.id=2"]) == {"run.id": "2"}
    assert overrides_of({"RUN_ID": ""}, []) == overrides_of({}, []) == {}
