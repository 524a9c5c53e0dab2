"""Implements the command `mirrorflow-operator`: arguments, logging and the exit status.

Exit status: 0 after SIGTERM or SIGINT; 1 after a bug, or if the Lease would expire during work that does not
end; 2 for an invalid setting or a Python package that is not installed. `--help` and `--version` need only
Python.
"""

import argparse
import asyncio
import importlib
import logging
import os
import sys
from importlib.metadata import PackageNotFoundError, version

from mirrorflow_kubernetes.credentials import KubernetesLoginError
from mirrorflow_operator.errors import SettingsError
from mirrorflow_operator.settings import from_environment

_OWN_PACKAGE = "mirrorflow"


def main() -> None:
    """Runs the command. All settings are environment variables; there are no further arguments."""
    _parser().parse_args()
    try:
        sys.exit(_run())
    except (SettingsError, KubernetesLoginError) as error:
        print(error, file=sys.stderr)  # noqa: T201  there is no log yet
    except ModuleNotFoundError as error:
        if (error.name or _OWN_PACKAGE).startswith(_OWN_PACKAGE):
            raise
        print(  # noqa: T201
            f"The Python package {error.name} is not installed; in MirrorFlow's folder, run pip install '.[operator]'.",
            file=sys.stderr,
        )
    sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mirrorflow-operator",
        description="Run the connectors of MirrorFlow resources on the cluster of KUBECONFIG or of this pod.",
        epilog="All settings are environment variables; see docs/operator.md.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    return parser


def _version() -> str:
    """Returns the installed version; "0" in a source tree that was never installed."""
    try:
        return version(_OWN_PACKAGE)
    except PackageNotFoundError:
        return "0"


def _run() -> int:
    # Imported here because it needs the packages of the extra `operator`, which --help must not need.
    process = importlib.import_module("mirrorflow_operator.process")
    settings = from_environment(os.environ)
    operator = process.Operator(settings=settings)
    asyncio.run(process.log_in())
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    # At INFO kopf logs every step of every object, with the object; its failures are warnings or worse.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    return int(asyncio.run(operator.run()))


if __name__ == "__main__":
    main()
