"""`mirrorflow validate`: every slip in a file at once; contacts nothing, needs no secrets."""

import argparse

from mirrorflow_cli.errors import EXIT_DONE
from mirrorflow_cli.flows import add_flow_arguments, flow_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow validate`."""
    add_flow_arguments(parser, addresses=False)


def execute(arguments: argparse.Namespace) -> int:
    """Raises UsageError with the slips, a line each."""
    flow = flow_from(arguments)
    print(f"{flow.metadata.name}: valid, {flow.spec.source.alias} -> {flow.spec.target.alias}")
    return EXIT_DONE
