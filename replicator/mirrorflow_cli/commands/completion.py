"""`mirrorflow completion`: prints a completion script for bash, zsh or fish.

The script completes commands, flags, choices and file names.
"""

import argparse
from collections.abc import Iterator

from mirrorflow_cli.commands import COMMANDS, command_parser
from mirrorflow_cli.errors import EXIT_DONE

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def execute(arguments: argparse.Namespace) -> int:
    import shtab  # noqa: PLC0415  only this command needs it

    parser = command_parser(COMMANDS)
    completes = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "FOLDER": shtab.DIRECTORY}
    for action in _actions(parser):
        if action.metavar in completes:
            action.complete = completes[action.metavar]  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=arguments.shell))
    return EXIT_DONE


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields every action of *parser* and of its subcommands."""
    for action in parser._actions:  # noqa: SLF001 argparse has no other way to list them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _actions(command)
