"""`make conformance` runs Apache Kafka's own MM2 tests against MirrorFlow's worker.

It prints each result at once, and then a table. It ends with 0 only if every chosen suite is valid and none of its
tests failed.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from itertools import product

from tests.conformance.suite import (
    DEDICATED,
    JAVA_DEDICATED,
    JAVA_WORKER,
    SUITES,
    VERSIONS,
    Result,
    Verdict,
    run,
)

OUR_WORKER = (sys.executable, "-m", "mirrorflow_replicator", "distributed", "{properties}")
OUR_DEDICATED = (sys.executable, "-m", "mirrorflow_replicator", "mm2", "{properties}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all if none")
    parser.add_argument("--tests", default="", metavar="REGEX", help="only tests whose names match")
    parser.add_argument("--workers", type=int, default=1, help="processes of each Connect cluster (1)")
    parser.add_argument(
        "--kafka",
        action="append",
        choices=VERSIONS,
        help="version of brokers and tests; all versions if none",
    )
    parser.add_argument(
        "--command",
        default="",
        help="another worker, {properties} standing for its file; `java` is Apache's own",
    )
    options = parser.parse_args(arguments)
    unknown = [suite for suite in options.suites if suite not in SUITES]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}")
    verdicts = []
    for kafka, suite in product(options.kafka or VERSIONS, options.suites or SUITES):
        command = _command(options.command, suite)
        print(f"\n{suite} of Kafka {kafka}: {shlex.join(command)}", flush=True)
        verdicts.append(
            run(
                suite,
                command=command,
                tests=options.tests,
                workers=options.workers,
                kafka=kafka,
                on_result=_print_result,
            )
        )
    _table(verdicts)
    return 0 if all(verdict.good for verdict in verdicts) else 1


def _command(asked: str, suite: str) -> Sequence[str]:
    """Returns the command of the worker that *suite* tests. *asked* is the command-line argument."""
    if asked == "java":
        return JAVA_DEDICATED if suite == DEDICATED else JAVA_WORKER
    return shlex.split(asked) or (OUR_DEDICATED if suite == DEDICATED else OUR_WORKER)


def _print_result(result: Result) -> None:
    print(
        f"  {'passed' if result.passed else 'FAILED'} {result.seconds:6.1f} s  {result.test}  {result.reason}",
        flush=True,
    )


def _table(verdicts: Sequence[Verdict]) -> None:
    row = "{:<14}{:<7}{:>8}{:>8}{:>10}{:>11}  {}"
    print("\n" + row.format("suite", "kafka", "passed", "failed", "seconds", "processes", "version"))
    for verdict in verdicts:
        failed = len(verdict.failed)
        print(
            row.format(
                verdict.suite,
                verdict.kafka,
                len(verdict.results) - failed,
                failed,
                f"{verdict.seconds:,.0f}",
                verdict.processes,
                ", ".join(verdict.versions),
            )
        )
    for verdict in verdicts:
        for problem in verdict.problems:
            print(f"{verdict.suite} of {verdict.kafka} counts for nothing: {problem}")
        if not verdict.good:
            print(
                f"{verdict.suite} of {verdict.kafka}: properties and logs of each process are in {verdict.folder}"
            )


if __name__ == "__main__":
    sys.exit(main())
