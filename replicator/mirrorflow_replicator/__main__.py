"""`mirrorflow-replicator`: three ways to start the same connector.

    mirrorflow-replicator standalone worker.properties connector.properties ...   (KIP-304)
    mirrorflow-replicator distributed worker.properties [connector.properties ...]   (Kafka Connect's)
    mirrorflow-replicator mm2 mm2.properties [--clusters B ...]                   (MM2's dedicated mode)

Two modes are internal: `task` is the process of one task, started by the others; `prepared` is `standalone` for
`mirrorflow run`, which passes its arguments later. Exit status: 0 stopped gracefully, 2 wrong settings or a missing Python
package (stderr says which), 130 stopped by Ctrl-C, 143 stopped by SIGTERM before anything had started, 1 any other error.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorflow_replicator import logs
from mirrorflow_replicator.process import importing
from mirrorflow_replicator.version import VersionAction
from mirrorflow_replicator.worker import prepared_start

if TYPE_CHECKING:
    from mirrorflow_core.settings import WorkerSettings
    from mirrorflow_replicator.worker.herder import StateFiles
    from mirrorflow_replicator.worker.main_process import Worker

EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
# What the extra `replicator` installs: module -> package. Some are imported only for a connection.
PACKAGES = {
    "kafka": "kafka-python",
    "crc32c": "crc32c",
    "cramjam": "cramjam",
    "cryptography": "cryptography",
    "h11": "h11",
    "regex": "regex",
}


def main(arguments: Sequence[str] | None = None, *, is_own_process: bool = False) -> int:
    """Runs the command line; returns the exit status. *is_own_process*: also with *arguments*, it may be forked."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        logs.set_up(os.environ)
    except ValueError as error:
        return _end(EXIT_SETTINGS, str(error))
    try:
        if given == ["task"]:
            with importing():
                from mirrorflow_replicator.worker import task_process  # noqa: PLC0415 a task must not load the worker

            return task_process.main()
        if is_own_process or arguments is None:
            _set_signals()
        if given == [prepared_start.MODE]:
            _import_modules()
            if (received := prepared_start.receive()) is None:
                return 0
            given = received
        options = _parser().parse_args(given)
        _require_packages()
        return _serve(options, forks=is_own_process or arguments is None)
    except KeyboardInterrupt:  # before the worker handles it
        return EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        module = (error.name or "mirrorflow").partition(".")[0]
        if module.startswith("mirrorflow"):
            raise
        package = PACKAGES.get(module, module)
        return _end(
            EXIT_SETTINGS,
            f"The Python package {package} is not installed; in MirrorFlow's folder: pip install '.[replicator]'.",
        )


def _set_signals() -> None:
    """Makes SIGTERM end this process until the worker handles it, and the end of a task known to it.

    The kernel ignores a signal that process 1 of a container does not handle: a deleted pod would start its connectors. Python
    ignores an exception that a handler raises in a finalizer, of which imports have many. A parent that ignores SIGCHLD leaves
    that to this process, which could not wait for its tasks.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_TERMINATED))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _require_packages() -> None:
    """Raises ModuleNotFoundError for a missing package now, not when the first connection needs it."""
    for module in PACKAGES:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(name=module)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mirrorflow-replicator",
        description="Replicates topics between Kafka clusters, each record once.",
    )
    parser.add_argument("--version", action=VersionAction)
    forms = parser.add_subparsers(dest="form", required=True, metavar="MODE")
    standalone = _add_mode(
        forms,
        "standalone",
        "run connectors from Kafka Connect's own files (KIP-304)",
        "worker.properties source.properties",
        "worker.properties source.properties checkpoint.properties",
    )
    standalone.add_argument("worker", type=Path, metavar="worker.properties")
    standalone.add_argument("connectors", type=Path, nargs="+", metavar="connector.properties")
    distributed = _add_mode(
        forms,
        "distributed",
        "run the connectors of Kafka Connect's config topic, changed over REST",
        "worker.properties",
        "worker.properties source.properties",
    )
    distributed.add_argument("worker", type=Path, metavar="worker.properties")
    distributed.add_argument("connectors", type=Path, nargs="*", metavar="connector.properties")
    mm2 = _add_mode(
        forms,
        "mm2",
        "run every flow of a MirrorMaker 2 file",
        "mm2.properties",
        "mm2.properties --clusters west",
    )
    mm2.add_argument("file", type=Path, metavar="mm2.properties")
    mm2.add_argument("--clusters", nargs="+", metavar="ALIAS", help="only flows to these targets")
    return parser


def _add_mode(
    forms: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, *examples: str
) -> argparse.ArgumentParser:
    """Adds the mode *name*; its help ends with the *examples*, which are its arguments."""
    lines = (f"mirrorflow-replicator {name} {example}" for example in examples)
    return forms.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="\n  ".join(["examples:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _import_modules() -> None:
    """Imports the modules of a worker, and of a task for the fork: after the parser, for a fast --help."""
    with importing():
        from mirrorflow_replicator.config import worker_properties  # noqa: F401, PLC0415
        from mirrorflow_replicator.worker import main_process, task_process  # noqa: F401, PLC0415


def _serve(options: argparse.Namespace, *, forks: bool) -> int:
    """Runs the worker; *forks*: the process is its own, and may be forked for the first task."""
    _import_modules()
    from mirrorflow_core.errors import MirrorFlowError, SettingError  # noqa: PLC0415
    from mirrorflow_replicator.connectors.child_process import fork_first  # noqa: PLC0415
    from mirrorflow_replicator.worker import task_process  # noqa: PLC0415
    from mirrorflow_replicator.worker.main_process import Worker  # noqa: PLC0415

    try:
        settings = _settings(options)
        is_task = forks and _copies(settings) and fork_first()
        worker = None if is_task else Worker(settings, state_files=_state_files(options, settings))
    except OSError as error:
        if error.filename is None:  # no process can be forked now
            return _end(EXIT_FAILED, f"The process cannot start: {error.strerror or error}.")
        return _end(EXIT_SETTINGS, f"{error.filename} cannot be read: {error.strerror}.")
    except SettingError as error:
        return _end(EXIT_SETTINGS, str(error))
    if worker is None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return task_process.main()
    try:
        return EXIT_INTERRUPTED if _run(worker, options.form) else 0
    except SettingError as error:
        return _end(EXIT_SETTINGS, str(error))
    except MirrorFlowError as error:
        return _end(EXIT_FAILED, str(error))


def _copies(settings: Sequence[WorkerSettings]) -> bool:
    """Returns whether a task starts here at once, as far as the files of the connectors say."""
    connectors = (connector for worker in settings for connector in worker.connectors)
    return any(
        connector.source is not None and connector.is_enabled and not connector.is_paused
        for connector in connectors
    )


def _run(worker: Worker, form: str) -> bool:
    """Runs *worker*; returns whether Ctrl-C has ended it. It shows its progress, unless it has a runner that does."""
    import asyncio  # noqa: PLC0415 after the parser, for a fast --help

    if os.environ.get("MIRRORFLOW_EXIT_WITH_STDIN"):
        return asyncio.run(worker.run())
    from mirrorflow_replicator.worker.progress_log import ProgressLog  # noqa: PLC0415
    from mirrorflow_replicator.worker.running_processes import registered_if_possible  # noqa: PLC0415

    with registered_if_possible({"form": form}) as file:
        progress = ProgressLog(worker.view, file=file, is_terminal=sys.stderr.isatty())
        return asyncio.run(worker.run(reports=progress.run))


def _settings(options: argparse.Namespace) -> tuple[WorkerSettings, ...]:
    from mirrorflow_replicator.config.worker_properties import load_distributed, load_standalone  # noqa: PLC0415

    if options.form == "mm2":
        from mirrorflow_replicator.config.dedicated_mode import load_mm2  # noqa: PLC0415

        return load_mm2(_text(options.file), options.clusters)
    connectors = [_text(path) for path in options.connectors]
    if options.form == "distributed":
        return (load_distributed(_text(options.worker), connectors),)
    return (load_standalone(_text(options.worker), connectors, now_ms=time.time_ns() // 1_000_000),)


def _state_files(options: argparse.Namespace, settings: Sequence[WorkerSettings]) -> StateFiles | None:
    from mirrorflow_replicator.worker.herder import StateFiles  # noqa: PLC0415

    if options.form == "mm2":
        return None
    return StateFiles(lambda: [_text(path) for path in options.connectors], settings[0].providers)


def _text(path: Path) -> str:
    """Reads a properties file. Java reads Latin-1, people write UTF-8: what is not UTF-8 was written for Java."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _end(status: int, sentence: str) -> int:
    print(sentence, file=sys.stderr)  # noqa: T201 what the user sees
    return status


if __name__ == "__main__":
    sys.exit(main())
