"""`mirrorflow export`: MirrorFlows -> the mm2.properties that says the same, for Java MM2 or `mirrorflow-replicator mm2`.

Secrets stay references: to files below `--secrets`, which Java reads with the same provider. What MM2 cannot say goes to stderr.
"""

import argparse
import sys

from mirrorflow_cli.errors import EXIT_DONE, UsageError
from mirrorflow_cli.export_lines import exported, notes, text
from mirrorflow_cli.flows import add_flow_arguments, flows_from, layout_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow export`."""
    add_flow_arguments(parser, addresses=False, several=True)


def execute(arguments: argparse.Namespace) -> int:
    """Raises UsageError for flows that do not fit into one file."""
    if not arguments.file:
        raise UsageError("Say which flow: -f FILE, several times for several flows.")
    out = exported(flows_from(arguments), layout_from(arguments))
    print(text(out.lines), end="")
    losses = notes(out.losses)
    if losses:
        print("Without a counterpart in an mm2.properties:", file=sys.stderr)
        for loss in losses:
            print(f"  {loss}", file=sys.stderr)
    return EXIT_DONE
