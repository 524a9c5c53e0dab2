"""What a job is told: two files of the source connector, and job.properties.

The connector's files hold references, not secrets. They are read where they are used: by the driver, and again by each
executor, which has them at the same paths; so nothing of them goes through Spark.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirrorflow_replicator.connect.properties import parse_properties
from mirrorflow_replicator.connect.worker import load_standalone
from mirrorflow_replicator.settings import OffsetStore, SourceSettings
from mirrorflow_seed.errors import JobSettingError

RUN_ID_MAX = 63  # as the resource bounds it


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFiles:
    """Where the source connector's own files are, on the driver and on every executor."""

    worker: str
    source: str

    def load(self) -> SourceSettings:
        """The flow's settings, references unresolved. Raises SettingError, JobSettingError, OSError."""
        loaded = load_standalone(_text(self.worker), [_text(self.source)], now_ms=time.time_ns() // 1_000_000)
        for connector in loaded.connectors:
            if connector.source is not None:
                return connector.source
        raise JobSettingError(
            key="connector.class",
            problem=f"{self.source} describes no source connector that is enabled",
            action="give the properties of a MirrorSourceConnector",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """A job. Sizes in bytes, durations in seconds; keys of job.properties stand beside the fields."""

    run_id: str = "1"  # run.id
    master: str = "local[*]"  # master: local[n], or k8s:// and the API server
    executors_max: int = 2  # executors.max, on Kubernetes; a local master has its cores
    # bytes.per.second: for the whole job, divided among the tasks that are at work; None: the flow's own limit.
    bytes_per_second: int | None = None
    waves_max: int = 10  # waves.max: a source that grows as fast as it is copied is not followed for ever
    wave_s: float = (
        300.0  # wave.ms: after so long a task gives its place to others, so that all share the cores
    )
    stalled_s: float = (
        600.0  # stalled.ms: so long without a step while tasks are at work, and the job gives up
    )
    lag_records_max: int = 10_000  # lag.max: less than this is for the live connector
    accept_foreign: bool = False  # foreign.records=accept, else refuse
    sample: float = 1.0  # sample: the share of windows that is verified, 0 < sample <= 1
    output: str = ""  # output: the folder that a verification writes its tables into
    archive: str = ""  # archive: the folder of an archive
    extra: Mapping[str, str]  # everything, also what is read by one job alone


def load_job(path: str | None, overrides: Mapping[str, str]) -> JobSettings:
    """job.properties, with *overrides* in place. Raises JobSettingError, OSError."""
    return job_of({**(parse_properties(_text(path)) if path else {}), **overrides})


def job_of(given: Mapping[str, str]) -> JobSettings:
    """A job of *given* properties. Raises JobSettingError."""
    default = JobSettings(extra={})
    run_id = given.get("run.id", default.run_id)
    if not 0 < len(run_id) <= RUN_ID_MAX:
        raise JobSettingError(
            key="run.id", problem="it is empty or too long", action=f"use 1 to {RUN_ID_MAX} letters"
        )
    foreign = given.get("foreign.records", "refuse").lower()
    if foreign not in {"refuse", "accept"}:
        raise JobSettingError(
            key="foreign.records", problem=f"{foreign!r} is neither", action="write refuse or accept"
        )
    limit = given.get("bytes.per.second")
    return JobSettings(
        run_id=run_id,
        master=given.get("master", default.master),
        executors_max=int(number_of(given, "executors.max", default.executors_max, 1, 10_000)),
        bytes_per_second=None if limit is None else int(number_of(given, "bytes.per.second", 0, 1, 1e15)),
        waves_max=int(number_of(given, "waves.max", default.waves_max, 1, 10_000)),
        wave_s=number_of(given, "wave.ms", default.wave_s * 1000, 1_000, 1e9) / 1000,
        stalled_s=number_of(given, "stalled.ms", default.stalled_s * 1000, 1_000, 1e9) / 1000,
        lag_records_max=int(number_of(given, "lag.max", default.lag_records_max, 0, 1e15)),
        accept_foreign=foreign == "accept",
        sample=number_of(given, "sample", default.sample, 1e-6, 1.0),
        output=given.get("output", ""),
        archive=given.get("archive", ""),
        extra=dict(given),
    )


def number_of(given: Mapping[str, str], key: str, default: float, least: float, most: float) -> float:
    """The number that *key* has in *given*. Raises JobSettingError where it is none from *least* to *most*."""
    text = given.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise JobSettingError(
            key=key, problem=f"{text!r} is no number in its range", action=f"write {least:g} to {most:g}"
        )
    return value


def whole_of(given: Mapping[str, str], key: str, default: int) -> int:
    """The same of a whole number above 0."""
    text = given.get(key, str(default))
    if not text.isdecimal() or not 0 < int(text) < 1 << 53:
        raise JobSettingError(key=key, problem=f"{text!r} is no number above 0", action="write one")
    return int(text)


def flag_of(given: Mapping[str, str], key: str, *, default: bool = False) -> bool:
    """The same of true and false."""
    text = given.get(key, str(default)).lower()
    if text not in {"true", "false"}:
        raise JobSettingError(key=key, problem=f"{text!r} is neither", action="write true or false")
    return text == "true"


def require_shared_positions(settings: SourceSettings) -> None:
    """Raises JobSettingError where positions are kept for one process alone, and a job has many."""
    if settings.offsets.store is OffsetStore.FILE:
        raise JobSettingError(
            key="offset.storage.store",
            problem="positions in a file are for one process, and this job has many",
            action="keep them in Kafka, as is the default",
        )


def require_archive(job: JobSettings) -> str:
    """The archive's folder. Raises JobSettingError where none is named."""
    if not job.archive:
        raise JobSettingError(key="archive", problem="it is not set", action="name the archive's folder")
    return job.archive


def _text(path: str) -> str:
    """As the connector reads its files: UTF-8, and what is none was written for Java, in Latin-1."""
    content = Path(path).read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")
