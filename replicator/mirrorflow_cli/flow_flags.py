"""Adds the arguments of a command that takes a flow. `flow_arguments` reads them; it imports the types of the resource."""

import argparse
from collections.abc import Sequence
from functools import partial

NAMINGS = ("Prefix", "Identity")  # `NamingPolicy` of the resource


def add_flow_arguments(parser: argparse.ArgumentParser, *, addresses: bool, several: bool = False) -> None:
    """Adds `-f`, `--secrets`, and with *addresses* the flags that replace a file.

    *several* accepts `-f` more than once.
    """
    more = "; repeatable" if several else ""
    flags_help = ", or use --from and --to" if addresses else ""
    action = "append" if several else "store"
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        action=action,
        help=f'MirrorFlow YAML file ("-" for stdin){more}; required{flags_help}',
    )
    parser.set_defaults(add_files=partial(_add_files, several=several))
    parser.add_argument(
        "--secrets",
        metavar="DIR",
        default=".",
        help="directory of secrets, as DIR/<secretName>/<key> (default: .)",
    )
    if not addresses:
        return
    flags = parser.add_argument_group("instead of a file")
    flags.add_argument(
        "--from", dest="source", metavar="HOST:PORT", help="source cluster; comma-separated addresses"
    )
    flags.add_argument("--to", dest="target", metavar="HOST:PORT", help="target cluster")
    flags.add_argument(
        "--topics",
        metavar="REGEX",
        action="append",
        help="topics to copy; repeatable, or comma-separated (default: .*)",
    )
    flags.add_argument(
        "--groups",
        metavar="REGEX",
        action="append",
        help="consumer groups whose offsets are synced; repeatable, or comma-separated (default: none; in a file: all)",
    )
    for option, side in (("from", "source"), ("to", "target")):
        flags.add_argument(
            f"--{option}-config",
            metavar="FILE",
            help=f"a Java client's properties for the {side}: TLS, SASL, bootstrap.servers",
        )
    flags.add_argument(
        "--naming",
        choices=NAMINGS,
        help="naming of target topics: Prefix (source.orders, the default) or Identity (orders)",
    )
    flags.add_argument("--from-alias", metavar="NAME", help="the source's alias (default: source)")
    flags.add_argument("--to-alias", metavar="NAME", help="the target's alias (default: target)")


def _add_files(arguments: argparse.Namespace, names: Sequence[str], *, several: bool) -> bool:
    """Takes *names* as files that were given without `-f`; returns False where they cannot be meant."""
    if any(name.startswith("-") for name in names):
        return False
    if several:
        arguments.file = [*(arguments.file or ()), *names]
        return True
    if arguments.file or len(names) > 1:
        return False
    arguments.file = names[0]
    return True
