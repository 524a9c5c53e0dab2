"""Defines the subcommands of `mirrorflow` and its argument parser."""

import argparse
import importlib
from collections.abc import Container

from mirrorflow_replicator.version import version

# Name of a module of this package -> help. Only the module of the command in use is imported, for a fast start.
COMMANDS = {
    "run": "run a flow on this machine until stopped",
    "status": "show the flows that run on this machine, and how they fare",
    "seed": "fill the target in bulk by Spark on this machine, then leave it to the connector",
    "validate": "say what is wrong with a file; nothing is contacted",
    "plan": "show the connectors, their properties, and the topics that match now",
    "check": "ask both clusters whether the flow would run; nothing is changed",
    "convert": "make MirrorFlows of an mm2.properties or of Strimzi's KafkaMirrorMaker2",
    "export": "make an mm2.properties of MirrorFlows",
    "dump": "print a flow's checkpoints, offset syncs or positions",
    "offsets": "show where each group stands on both sides, and what a failover would read again",
    "verify": "compare both clusters of a flow, window by window; nothing is changed",
    "archive": "write a flow's topics to Parquet by Spark, to be restored from or read",
    "restore": "fill the target from an archive; the connector continues where it ends",
    "completion": "print a script that lets a shell complete commands and flags",
    "acls": "print the least ACLs, as kafka-acls commands",
}


def command_parser(loaded: Container[str]) -> argparse.ArgumentParser:
    """Returns the parser; the commands in *loaded* have their flags, the others only their help text."""
    parser = argparse.ArgumentParser(
        prog="mirrorflow",
        description="Replicate Kafka topics from one cluster to another.",
        epilog="Exit status: 0 done, 1 failed, 2 wrong arguments or file, 130 Ctrl-C, 143 SIGTERM.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name in loaded:
            implementation = importlib.import_module(f"mirrorflow_cli.commands.{name}")
            implementation.add_arguments(command)
            command.set_defaults(execute=implementation.execute)
    return parser
