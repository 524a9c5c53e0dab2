"""The command `mirrorflow`: one subcommand a module, one place where errors become an exit status.

Exit status: 0 done; 1 it could not be done, or `check` found something; 2 the arguments or the file are wrong and
nothing was started; 130 and 143 stopped by Ctrl-C or SIGTERM. Errors are sentences on stderr, never a traceback.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_SIGNAL_BASE, EXIT_USAGE, CommandError
from mirrorflow_replicator.errors import MirrorFlowError, SettingError

# Name -> module and what it does; a module is loaded when its command is asked for, and takes its time only then.
COMMANDS = {
    "run": ("run", "run a flow on this machine until stopped"),
    "seed": ("seed", "fill the target in bulk by Spark on this machine, then leave it to the connector"),
    "validate": ("validate", "say what is wrong with a file; nothing is contacted"),
    "plan": ("planning", "show the connectors, their properties, and the topics that match now"),
    "check": ("check", "ask both clusters whether the flow would run; nothing is changed"),
    "convert": ("convert", "make MirrorFlows of an mm2.properties or of Strimzi's KafkaMirrorMaker2"),
    "export": ("export", "make an mm2.properties of MirrorFlows"),
    "dump": ("dump", "print the records of a flow's own topics"),
    "offsets": (
        "offsets",
        "show where each group stands on both sides, and what a failover would read again",
    ),
    "verify": ("verify", "compare both clusters of a flow, window by window; nothing is changed"),
    "archive": ("archive", "write a flow's topics to Parquet by Spark, to be restored from or read"),
    "restore": ("restore", "fill the target from an archive; the connector goes on where it ends"),
    "acls": ("acls", "print the least ACLs, as kafka-acls commands"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of the command *arguments* (default: those of the process)."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parsed = _parser(next((word for word in given if word in COMMANDS), "")).parse_args(given)
    try:
        return int(parsed.execute(parsed))
    except CommandError as error:
        print(error, file=sys.stderr)
        return error.status
    except SettingError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except MirrorFlowError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_SIGNAL_BASE + 2
    except BrokenPipeError:
        # Who reads stdout has enough (head, less); Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE


def _parser(asked: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mirrorflow",
        description="Replicate Kafka topics from one cluster to another.",
        epilog="Exit status: 0 done, 1 failed, 2 wrong arguments or file, 130 Ctrl-C, 143 SIGTERM.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == asked:
            loaded = importlib.import_module(f"mirrorflow_cli.{module}")
            loaded.add_arguments(command)
            command.set_defaults(execute=loaded.execute)
    return parser


if __name__ == "__main__":
    sys.exit(main())
