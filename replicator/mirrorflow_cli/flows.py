"""Reads the MirrorFlow of a command, from `-f FILE` or from flags that stand for a file.

`flags` converts the flags.
"""

import argparse
import sys
from pathlib import Path

from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.flags import document_of, in_flags
from mirrorflow_operator.api.load import flow_of, load_flow
from mirrorflow_operator.api.spec import MirrorFlow, NamingPolicy
from mirrorflow_operator.errors import InvalidSpecError
from mirrorflow_operator.plan.layout import SecretLayout

FILE_MAX_BYTES = 1024 * 1024  # etcd takes no larger object


def add_flow_arguments(parser: argparse.ArgumentParser, *, addresses: bool, several: bool = False) -> None:
    """Adds `-f`, `--secrets`, and with *addresses* the flags that stand for a file.

    *several* accepts `-f` more than once.
    """
    more = "; several times for several flows" if several else ""
    action = "append" if several else "store"
    parser.add_argument(
        "-f", "--file", metavar="FILE", action=action, help=f"a MirrorFlow in YAML; - is stdin{more}"
    )
    parser.add_argument(
        "--secrets",
        metavar="DIR",
        default=".",
        help="where secrets are: DIR/<secretName>/<key> (default: here)",
    )
    if not addresses:
        return
    flags = parser.add_argument_group("instead of a file")
    flags.add_argument("--from", dest="source", metavar="HOST:PORT", help="the source, host:port,host:port")
    flags.add_argument("--to", dest="target", metavar="HOST:PORT", help="the target")
    flags.add_argument(
        "--topics",
        metavar="REGEX",
        action="append",
        help="topics to copy; several times or a,b (default: .*)",
    )
    flags.add_argument(
        "--groups",
        metavar="REGEX",
        action="append",
        help="consumer groups whose offsets follow; several times or a,b (default: none)",
    )
    for word, side in (("from", "source"), ("to", "target")):
        flags.add_argument(
            f"--{word}-config",
            metavar="FILE",
            help=f"a Java client's properties for the {side}: TLS, SASL, bootstrap.servers",
        )
    flags.add_argument(
        "--naming",
        choices=[policy.value for policy in NamingPolicy],
        help="of copies: Prefix (source.orders, the default) or Identity (orders)",
    )
    flags.add_argument("--from-alias", metavar="NAME", help="the source's alias (default: source)")
    flags.add_argument("--to-alias", metavar="NAME", help="the target's alias (default: target)")


def flow_from(arguments: argparse.Namespace) -> MirrorFlow:
    """Returns the flow given by *arguments*. Raises UsageError with all errors, one per line."""
    given = [
        name
        for name in (
            "source",
            "target",
            "topics",
            "groups",
            "from_alias",
            "to_alias",
            "from_config",
            "to_config",
            "naming",
        )
        if getattr(arguments, name, None)
    ]
    if arguments.file and given:
        raise UsageError(
            "Give either -f FILE or --from, --to and the other flags that stand for a file: it says all that they say."
        )
    try:
        if arguments.file:
            return load_flow(read_text(arguments.file))
        sides = (("source", "from_config"), ("target", "to_config"))
        if not all(any(getattr(arguments, name, None) for name in side) for side in sides):
            flags = (
                ", or --from HOST:PORT --to HOST:PORT --topics REGEX" if hasattr(arguments, "source") else ""
            )
            raise UsageError(f"Say which flow: -f FILE{flags}.")
        return flow_of(document_of(arguments))
    except InvalidSpecError as error:
        raise UsageError(in_flags(error, arguments)) from error


def flows_from(arguments: argparse.Namespace) -> list[MirrorFlow]:
    """Returns the flows of a command that accepts `-f` more than once.

    Raises UsageError like `flow_from`, and for a name that is used twice.
    """
    files = arguments.file or [None]
    flows = [flow_from(argparse.Namespace(**{**vars(arguments), "file": file})) for file in files]
    names = [flow.metadata.name for flow in flows]
    for name in {name for name in names if names.count(name) > 1}:
        raise UsageError(f"Two files hold a flow named {name}; give each its own metadata.name.")
    return flows


def layout_from(arguments: argparse.Namespace) -> SecretLayout:
    """Returns the layout in which Secrets and ConfigMaps are folders below `--secrets`. Raises UsageError."""
    folder = Path(arguments.secrets).expanduser().resolve()
    if not folder.is_dir():
        raise UsageError(
            f"--secrets: {arguments.secrets} is no directory; name one laid out as <secretName>/<key>."
        )
    reads_files = any(getattr(arguments, name, None) for name in ("from_config", "to_config"))
    return SecretLayout(secrets=str(folder), config_maps=str(folder), reads_files=reads_files)


def read_text(name: str, what: str = "a MirrorFlow") -> str:
    """Returns the text of the file *name*; `-` is stdin. *what* is its expected content.

    Raises UsageError for a file that cannot be read, is too large or is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read(FILE_MAX_BYTES + 1) if name == "-" else _file_bytes(Path(name))
        if len(data) > FILE_MAX_BYTES:
            raise UsageError(f"{name} is larger than {FILE_MAX_BYTES} bytes; {what} never is.")
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(
            f"{name} cannot be read: {error.strerror}; name a file with {what} in it."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is no text: byte {error.start} is not UTF-8; save it as UTF-8.") from error


def _file_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_MAX_BYTES + 1)
