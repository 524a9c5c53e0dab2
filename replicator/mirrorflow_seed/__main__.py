"""The command `mirrorflow-seed`: runs seed, verify, export and restore as Spark jobs.

    mirrorflow-seed seed    --worker worker.properties --source source.properties [--job job.properties]
    mirrorflow-seed verify  ...
    mirrorflow-seed export  ...
    mirrorflow-seed restore ...

The files are the source connector's own. `executor` and `driver` are internal: Spark starts them in pods of executors, and
of a driver that spark-submit has submitted in cluster mode. Exit status: 0 done; 1 what was compared or copied is not the same on both sides; 2 invalid arguments or settings; 3 stopped
by a signal; 4 it could not run, or failed; 5 no topic is selected; 6 the plan of a repair was shown
(docs/seeding.md and docs/verification.md have tables).
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence

from mirrorflow_core.errors import MirrorFlowError, SettingError
from mirrorflow_seed import kubernetes_backend
from mirrorflow_seed.errors import EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, SeedError
from mirrorflow_seed.settings import REPAIR_KEY, FlowFiles, flag_of, load_job
from mirrorflow_seed.signal_handlers import handling
from mirrorflow_seed.spark_session import imported_job

_LOG = logging.getLogger(__name__)
# Name -> module and summary; a module is imported only when its command runs.
COMMANDS = {
    "seed": (
        "seed.seed_driver",
        "fill the target with what the source has, then leave it to the live connector",
    ),
    "verify": (
        "verify.verify_driver",
        "compare source and target, or an archive and the target, window by window",
    ),
    "export": ("archive.export_driver", "write a flow's topics to an archive"),
    "restore": ("archive.restore_driver", "fill a cluster from an archive"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        # As Ctrl-C, until the job has a handler of its own, which some set after Spark's start. The kernel ignores a signal that
        # process 1 of a container does not handle: the job of a deleted pod would begin.
        with handling(signal.default_int_handler, signal.SIGTERM):
            if given[:1] == ["executor"]:
                return kubernetes_backend.exec_executor(given[1:])
            if given[:1] == ["driver"]:
                file, given = kubernetes_backend.driver_command(given[1:])
                kubernetes_backend.use_properties_of_submission(file, os.environ)
            return _run(_parser().parse_args(given))
    except KeyboardInterrupt:
        status, sentence = EXIT_STOPPED, "Stopped by a signal."
    except SeedError as error:
        status, sentence = error.status, str(error)
    except SettingError as error:
        status, sentence = EXIT_USAGE, str(error)
    except MirrorFlowError as error:
        status, sentence = EXIT_FAILED, str(error)
    except OSError as error:
        if error.filename is None:  # of a connection or a full disk, not of a file that an argument names
            status, sentence = EXIT_FAILED, f"The job failed: {error.strerror or error}."
        else:
            status, sentence = EXIT_USAGE, f"{error.filename} cannot be used: {error.strerror}."
    except Exception as error:  # noqa: BLE001 logged
        # A defect: Python would end with status 1, which means a difference.
        _LOG.exception("An unexpected error:")
        status, sentence = EXIT_FAILED, f"{type(error).__name__}: {error}"
    print(sentence, file=sys.stderr)  # noqa: T201 the command's output
    return status


def _run(parsed: argparse.Namespace) -> int:
    """Runs the job that the arguments name; returns its exit status."""
    files = FlowFiles(worker=parsed.worker, source=parsed.source)
    job = load_job(parsed.job, overrides_of(os.environ, parsed.set))
    module = COMMANDS[parsed.command][0]
    if parsed.command == "verify" and job.archive:
        module = "archive.archive_verification"
    if parsed.command == "verify" and flag_of(job.extra, REPAIR_KEY):
        module = "repair.repair_driver"
    return int(imported_job(module).run(files, job))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mirrorflow-seed", description="Seeds, verifies and archives a flow."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        command.add_argument(
            "--worker", required=True, metavar="FILE", help="the source connector's worker.properties"
        )
        command.add_argument("--source", required=True, metavar="FILE", help="its connector properties")
        command.add_argument("--job", metavar="FILE", help="job.properties")
        command.add_argument(
            "--set",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            type=_pair,
            help="one property of the job",
        )
    return parser


def overrides_of(environment: Mapping[str, str], pairs: Iterable[str]) -> dict[str, str]:
    """Returns the overrides of job.properties: the run id of `RUN_ID`, and *pairs*, which take precedence."""
    named = {"run.id": environment["RUN_ID"]} if environment.get("RUN_ID") else {}
    return named | dict(pair.split("=", 1) for pair in pairs)


def _pair(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return text


if __name__ == "__main__":
    sys.exit(main())
