"""`make compatibility`: runs a flow between two clusters, kills it, and writes what holds into a file that can be sent in.

        python -m tests.compatibility --source 4.4.0 --target 4.3.1
        python -m tests.compatibility --source 4.3.1 --target broker:9092 --target-client client.properties --target-name "..."
        python -m tests.compatibility table

SOURCE and TARGET are releases of Kafka, which are fetched and started, or bootstrap addresses. `table` writes the table in
docs/which-kafkas.md from the files in tests/compatibility/results. The exit status is 1 if a check failed.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.compatibility.endpoints import RELEASE, opened
from tests.compatibility.result import CHECKS, Result, read_result, table, write_result
from tests.compatibility.trial import Trial
from tests.harness.kafka.installation import CACHE, VERSION

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
PAGE = ROOT / "docs" / "which-kafkas.md"
BEGIN, END = "<!-- results: make compatibility-table -->\n", "<!-- end of results -->\n"
EXIT_PASSED, EXIT_FAILED = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["table"]:
        PAGE.write_text(with_table(PAGE.read_text(), stored_results()))
        return EXIT_PASSED
    options = _parsed(given)
    for where in (VERSION, options.source, options.target):  # VERSION has the Java clients
        if RELEASE.fullmatch(where) and not (CACHE / f".ready-{where}").exists():
            subprocess.run([ROOT / "tests" / "harness" / "kafka" / "setup.sh", where], check=True)
    with tempfile.TemporaryDirectory(prefix="mirrorflow-compatibility-") as folder, ExitStack() as stack:
        source, target = (
            stack.enter_context(
                opened(
                    getattr(options, side),
                    side,
                    name=getattr(options, f"{side}_name"),
                    client=getattr(options, f"{side}_client"),
                    folder=Path(folder),
                )
            )
            for side in ("source", "target")
        )
        trial = Trial(source=source, target=target, folder=Path(folder))
        print(f"{source.name} to {target.name}: topics, group and ACL begin with {trial.prefix}", flush=True)
        result = trial.run()
    path = options.out or _file(result)
    write_result(result, path)
    _print(result)
    print(f"\nWritten to {path}. It names no host, user or record.")
    return EXIT_PASSED if result.has_passed else EXIT_FAILED


def stored_results() -> list[Result]:
    """Returns the results in the repository."""
    return [read_result(path) for path in sorted(RESULTS.glob("*.json"))]


def with_table(page: str, results: Sequence[Result]) -> str:
    """Returns *page* with the table of *results* between its two marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table(results)}\n{END}{tail}"


def _parsed(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make compatibility", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for side in ("source", "target"):
        parser.add_argument(f"--{side}", required=True, help="a release, or bootstrap addresses")
        parser.add_argument(
            f"--{side}-name", default="", help="what the addresses are, with the version: it names the result"
        )
        parser.add_argument(
            f"--{side}-client", type=Path, help="properties file of a Java client with the login and TLS"
        )
    parser.add_argument(
        "--out", type=Path, help="the result's file; the default is in tests/compatibility/results"
    )
    options = parser.parse_args(given)
    for side in ("source", "target"):
        if not RELEASE.fullmatch(getattr(options, side)) and not getattr(options, f"{side}_name"):
            parser.error(f"--{side} has addresses: name the cluster and its version with --{side}-name")
    return options


def _file(result: Result) -> Path:
    stem = re.sub(r"[^a-z0-9.]+", "-", f"{result.source} to {result.target}".lower())
    return RESULTS / f"{stem}.json"


def _print(result: Result) -> None:
    print(f"{'guarantee':<12}{result.guarantee}  {result.guarantee_reason}")
    for name in CHECKS:
        verdict = result.verdicts[name]
        print(f"{name:<12}{verdict.outcome}  {verdict.detail}")


if __name__ == "__main__":
    sys.exit(main())
