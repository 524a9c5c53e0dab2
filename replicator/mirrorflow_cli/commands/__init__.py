"""Defines the subcommands of `mirrorflow` and its argument parser."""

import argparse
import difflib
import importlib
import re
from collections.abc import Collection, Container
from typing import Any, NoReturn

from mirrorflow_cli.command_examples import examples_of
from mirrorflow_replicator.version import VersionAction

# Heading -> name of a module of this package -> help. Only the module of the command in use is imported, for a
# fast start.
_GROUPS = {
    "run a flow": {
        "run": "run a flow on this machine until stopped",
        "status": "list running flows and their state",
        "ui": "open a console of running flows in the browser (read-only)",
    },
    "inspect a flow (read-only)": {
        "validate": "validate flow files offline",
        "plan": "show connectors, their properties and the matching topics",
        "check": "check connectivity, permissions and the guarantee on both clusters",
        "acls": "print kafka-acls commands for the minimum permissions",
        "offsets": "show consumer group offsets on both clusters, or translate offsets that applications keep",
        "dump": "print a flow's checkpoints, offset syncs or positions",
    },
    "move applications": {
        "switchover": "move the applications of a pair to its other cluster, or rehearse or undo that",
        "diverged": "show and keep what a cluster that was left unplanned had written, when it returns",
    },
    "convert": {
        "convert": "convert an mm2.properties or a Strimzi KafkaMirrorMaker2 to MirrorFlow files",
        "export": "convert MirrorFlow files to an mm2.properties",
    },
    "bulk jobs": {
        "seed": "bulk-copy to the target with Spark on this machine",
        "verify": "compare both clusters with Spark on this machine (read-only)",
        "archive": "write source topics to Parquet with Spark; the target is not contacted",
        "restore": "restore an archive to the target with Spark",
    },
    "shell": {
        "completion": "print a shell completion script",
    },
}
COMMANDS = {name: summary for group in _GROUPS.values() for name, summary in group.items()}
_HEADINGS = {next(iter(group)): heading for heading, group in _GROUPS.items()}
_NO_COMMAND = re.compile(r"argument COMMAND: invalid choice: '(.*?)' ")
_NO_OPTION = re.compile(r"unrecognized arguments: (--[\w-]+)")
_OPTION = re.compile(r"--[\w-]+")


class _GroupedHelp(argparse.HelpFormatter):
    """Prints a heading before the first command of each group."""

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        heading = None if action.option_strings else _HEADINGS.get(action.dest)
        return text if heading is None else f"\n  {heading}:\n{text}"


class _CommandParser(argparse.ArgumentParser):
    """Suggests the command or the option that a mistyped one is meant to be."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.loaded: list[argparse.ArgumentParser] = [self]  # parsers whose options may be meant

    def error(self, message: str) -> NoReturn:
        """Prints *message*, or a shorter one with a suggestion, and exits with 2."""
        if match := _NO_COMMAND.match(message):
            name = match[1]
            message = f"there is no command {name}{_suggestion(name, COMMANDS)}`mirrorflow --help` lists all."
        elif match := _NO_OPTION.match(message):
            options = (option for parser in self.loaded for option in _OPTION.findall(parser.format_usage()))
            message += _suggestion(match[1], [*options]).rstrip("; ")
        super().error(message)


def _suggestion(name: str, known: Collection[str]) -> str:
    """Returns the end of a clause: a question for the likely one of *known*, or a semicolon."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}? " if close else "; "


def command_parser(
    loaded: Container[str], listed: Collection[str] = COMMANDS.keys()
) -> argparse.ArgumentParser:
    """Returns the parser of the commands in *listed*; those in *loaded* have their flags, the others only their help text."""
    parser = _CommandParser(
        prog="mirrorflow",
        description="Replicate Kafka topics from one cluster to another.",
        formatter_class=_GroupedHelp,
        epilog="Exit status: 0 done, 1 failed, 2 invalid arguments or file, 130 Ctrl-C, 143 SIGTERM.",
    )
    parser.add_argument("--version", action=VersionAction)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in listed:
        summary = COMMANDS[name]
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=examples_of(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in loaded:
            implementation = importlib.import_module(f"mirrorflow_cli.commands.{name}")
            implementation.add_arguments(command)
            parser.loaded.append(command)
            command.set_defaults(execute=implementation.execute)
    return parser
