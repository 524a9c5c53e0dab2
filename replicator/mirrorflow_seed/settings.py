"""Reads the settings of a job: two files of the source connector, and job.properties.

The connector's files refer to secrets. The driver resolves the references where it runs, and each executor where it runs,
so no secret passes through Spark.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from mirrorflow_core.java.properties import parse_properties
from mirrorflow_core.settings import OffsetStore, SourceSettings
from mirrorflow_replicator.config.providers import shown_value
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_seed.errors import JobSettingError

RUN_ID_MAX = 63  # the limit of the MirrorFlow resource
REPAIR_KEY: Final = "repair"  # true: what a verification has found is repaired
CONFIRMED_KEY: Final = "repair.confirmed"  # true: not only planned
KEYS: Final = frozenset(
    {
        *("run.id", "master", "executors.max", "bytes.per.second", "sample", "output", "archive"),
        *("waves.max", "wave.ms", "stalled.ms", "lag.max", "foreign.records"),
        *("window.offsets", "split.windows", "keys.max", "ignore.timestamps", "decode.all", "output.keys"),
        *(REPAIR_KEY, CONFIRMED_KEY),
        *("archive.file.bytes", "archive.compare", "archive.compact", "archive.follow"),
        *("archive.interval.ms", "archive.groups", "archive.groups.exclude", "archive.until"),
        *("archive.partitions", "archive.iceberg.table"),
    }
)
SPARK_PREFIX: Final = "spark."
KUBERNETES_PREFIX: Final = "k8s://"
POD_TEMPLATE_KEY: Final = "spark.kubernetes.executor.podTemplateFile"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFiles:
    """The paths of the source connector's own files; with *is_shared*, their names among the files of the Spark session."""

    worker: str
    source: str
    is_shared: bool = False

    def load(self) -> SourceSettings:
        """Returns the flow's settings, references unresolved. Raises SettingError, JobSettingError, OSError."""
        worker, source = (_text(self._path(name)) for name in (self.worker, self.source))
        loaded = load_standalone(worker, [source], now_ms=time.time_ns() // 1_000_000)
        for connector in loaded.connectors:
            if connector.source is not None:
                return connector.source
        raise JobSettingError(
            key="connector.class",
            problem=f"{self.source} describes no source connector that is enabled",
            action="give the properties of a MirrorSourceConnector",
        )

    def plain_secrets(self) -> tuple[str, ...]:
        """Returns the keys whose values are secrets in plain text, sorted. Raises OSError."""
        keys: set[str] = set()
        for name in (self.worker, self.source):
            properties = parse_properties(_text(self._path(name)))
            keys |= {key for key, value in properties.items() if shown_value(key, value) != value}
        return tuple(sorted(keys))

    def _path(self, name: str) -> str:
        if not self.is_shared:
            return name
        from pyspark import SparkFiles  # noqa: PLC0415 the extra `seed`

        return str(SparkFiles.get(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The settings of a job. Sizes in bytes, durations in seconds; comments give the job.properties keys."""

    run_id: str = "1"  # run.id
    # master: local[n], spark://, k8s://, yarn; None: what the user's Spark is set to, else local[*]
    master: str | None = None
    executors_max: int = 2  # executors.max, on Kubernetes only; a local master uses its cores
    # bytes.per.second: for the whole job, divided among its running tasks; None: the flow's own limit.
    bytes_per_second: int | None = None
    waves_max: int = 10  # waves.max: bounds a seed whose source grows as fast as it is copied
    wave_s: float = 300.0  # wave.ms: a task ends after this time, so that all tasks share the cores
    # stalled.ms: the job fails after this time without progress of its running tasks
    stalled_s: float = 600.0
    lag_records_max: int = 10_000  # lag.max: a lag of at most this is left to the live connector
    accept_foreign: bool = False  # foreign.records=accept, else refuse
    sample: float = 1.0  # sample: the share of windows to verify, 0 < sample <= 1
    output: str | None = None  # output: the folder for the result of a verification
    archive: str | None = None  # archive: the folder of an archive
    extra: Mapping[str, str]  # all properties, including those that only one job reads

    @property
    def has_mounted_files(self) -> bool:
        """Whether executors are pods that have the flow's files mounted, as the operator's have."""
        return POD_TEMPLATE_KEY in self.extra and (self.master or "").startswith(KUBERNETES_PREFIX)


def load_job(path: str | None, overrides: Mapping[str, str]) -> JobSettings:
    """Reads job.properties and applies *overrides*. Raises JobSettingError, OSError."""
    return job_of({**(parse_properties(_text(path)) if path else {}), **overrides})


def job_of(given: Mapping[str, str]) -> JobSettings:
    """Returns the settings of the properties *given*. Raises JobSettingError."""
    default = JobSettings(extra={})
    for key in given:
        if key not in KEYS and not key.startswith(SPARK_PREFIX):
            near = get_close_matches(key, KEYS, n=1)
            raise JobSettingError(
                key=key,
                problem="it is no property of a job",
                action=f"write {near[0]}"
                if near
                else "docs/seeding.md and docs/verification.md list them all",
            )
    run_id = given.get("run.id", default.run_id)
    if not 0 < len(run_id) <= RUN_ID_MAX:
        raise JobSettingError(
            key="run.id", problem="it is empty or too long", action=f"use 1 to {RUN_ID_MAX} letters"
        )
    foreign = given.get("foreign.records", "refuse").lower()
    if foreign not in {"refuse", "accept"}:
        raise JobSettingError(
            key="foreign.records",
            problem=f"{foreign!r} is not a valid value",
            action="write refuse or accept",
        )
    if flag_of(given, "output.keys") and not given.get("output"):
        raise JobSettingError(
            key="output.keys",
            problem="it keeps keys in the result, and there is no folder for the result",
            action="name its folder with output, or with --out of mirrorflow verify",
        )
    limit = given.get("bytes.per.second")
    return JobSettings(
        run_id=run_id,
        master=given.get("master") or None,
        executors_max=int(number_of(given, "executors.max", default.executors_max, 1, 10_000)),
        bytes_per_second=None if limit is None else int(number_of(given, "bytes.per.second", 0, 1, 1e15)),
        waves_max=int(number_of(given, "waves.max", default.waves_max, 1, 10_000)),
        wave_s=number_of(given, "wave.ms", default.wave_s * 1000, 1_000, 1e9) / 1000,
        stalled_s=number_of(given, "stalled.ms", default.stalled_s * 1000, 1_000, 1e9) / 1000,
        lag_records_max=int(number_of(given, "lag.max", default.lag_records_max, 0, 1e15)),
        accept_foreign=foreign == "accept",
        sample=number_of(given, "sample", default.sample, 1e-6, 1.0),
        output=given.get("output") or None,
        archive=given.get("archive") or None,
        extra=dict(given),
    )


def number_of(given: Mapping[str, str], key: str, default: float, least: float, most: float) -> float:
    """Returns the number of *key* in *given*. Raises JobSettingError unless it lies between *least* and *most*."""
    text = given.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise JobSettingError(
            key=key,
            problem=f"{text!r} is not a number in the allowed range",
            action=f"write {least:g} to {most:g}",
        )
    return value


def whole_of(given: Mapping[str, str], key: str, default: int) -> int:
    """Returns the whole number of *key*, above 0. Raises JobSettingError for other values."""
    text = given.get(key, str(default))
    if not text.isdecimal() or not 0 < int(text) < 1 << 53:
        raise JobSettingError(key=key, problem=f"{text!r} is not a whole number above 0", action="write one")
    return int(text)


def flag_of(given: Mapping[str, str], key: str, *, default: bool = False) -> bool:
    """Returns the boolean of *key*. Raises JobSettingError unless it is true or false."""
    text = given.get(key, str(default)).lower()
    if text not in {"true", "false"}:
        raise JobSettingError(key=key, problem=f"{text!r} is not a boolean", action="write true or false")
    return text == "true"


def require_shared_positions(settings: SourceSettings) -> None:
    """Raises JobSettingError if offsets are stored in a file, which only one process can use."""
    if settings.offsets.store is OffsetStore.FILE:
        raise JobSettingError(
            key="offset.storage.store",
            problem="offsets in a file can be used by one process only, and this job has many",
            action="store them in Kafka, which is the default",
        )


def require_archive(job: JobSettings) -> str:
    """Returns the archive's folder. Raises JobSettingError if it is not set."""
    if not job.archive:
        raise JobSettingError(key="archive", problem="it is not set", action="name the archive's folder")
    return job.archive


def _text(path: str) -> str:
    """Reads a file as the connector does: UTF-8, else Latin-1, the encoding of Java's properties."""
    content = Path(path).read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")
