"""`mirrorflow export`: converts MirrorFlows into the equivalent mm2.properties.

The file is for Java MM2 or `mirrorflow-replicator mm2`. Secrets stay references to files below `--secrets`,
which Java reads with the same provider. Settings that MM2 cannot express are listed on stderr.
"""

import argparse
import sys

from mirrorflow_cli.errors import EXIT_DONE, UsageError
from mirrorflow_cli.export_lines import exported, notes, text
from mirrorflow_cli.flow_plans import valid_plans
from mirrorflow_cli.flows import add_flow_arguments, flows_from, layout_from
from mirrorflow_cli.json_output import add_json_argument, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `mirrorflow export`."""
    add_flow_arguments(parser, addresses=False, several=True)
    add_json_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the file. Raises UsageError for flows that are invalid or do not fit into one file."""
    if not arguments.file:
        raise UsageError("Say which flow: -f FILE, several times for several flows.")
    flows, layout = flows_from(arguments), layout_from(arguments)
    valid_plans(flows, layout)
    out = exported(flows, layout)
    losses = notes(out.losses)
    if arguments.json:
        print_json({"properties": out.lines, "unsupported": losses})
        return EXIT_DONE
    print(text(out.lines), end="")
    if losses:
        print("Without a counterpart in an mm2.properties:", file=sys.stderr)
        for loss in losses:
            print(f"  {loss}", file=sys.stderr)
    return EXIT_DONE
