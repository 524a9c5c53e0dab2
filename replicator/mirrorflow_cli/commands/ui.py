"""`mirrorflow ui`: serves the console for the flows that run on this machine, until stopped."""

import argparse
from pathlib import Path

from mirrorflow_cli.errors import EXIT_DONE, FailedError, UsageError
from mirrorflow_cli.flow_arguments import flows_from, layout_from, valid_plans
from mirrorflow_replicator.process import importing

PORT = 8484


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        metavar="NUMBER",
        help=f"port on 127.0.0.1 (default: {PORT}; 0: any)",
    )
    parser.add_argument("--no-history", action="store_true", help="keep the history in memory only")
    parser.add_argument(
        "--results",
        metavar="DIR",
        help="folder of `mirrorflow verify --out` and of archives, which are shown, too",
    )
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="address of a Prometheus that scrapes the flows, for charts of the last hour, day and week",
    )
    parser.add_argument(
        "--context",
        metavar="NAME",
        action="append",
        default=[],
        help="context of the kubeconfig whose MirrorFlows are shown, too; repeatable (default: the current one)",
    )
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        action="append",
        help="MirrorFlow YAML file of a flow whose internal topics are shown, too; repeatable",
    )
    parser.add_argument(
        "--secrets",
        metavar="DIR",
        default=".",
        help="directory of the files' secrets, as DIR/<secretName>/<key> (default: .)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Serves until Ctrl-C. With files, it also shows the internal topics of their flows. Raises UsageError and FailedError."""
    if not 0 <= arguments.port < 65_536:
        raise UsageError("--port must be from 0 to 65535.")
    with importing():  # only this command needs these packages
        from mirrorflow_cli.internal_topic_reader import FileFlowTopics  # noqa: PLC0415
        from mirrorflow_console.local_server import serve  # noqa: PLC0415

    plans = valid_plans(flows_from(arguments), layout_from(arguments)) if arguments.file else []
    try:
        serve(
            port=arguments.port,
            keeps_history=not arguments.no_history,
            contexts=arguments.context,
            results=None if arguments.results is None else Path(arguments.results),
            prometheus=arguments.prometheus,
            internal=FileFlowTopics(plans) if plans else None,
            announce=lambda text: print(text, flush=True),
        )
    except OSError as error:
        raise FailedError(
            f"The console cannot listen on 127.0.0.1:{arguments.port}: {error.strerror}; choose another with --port."
        ) from error
    return EXIT_DONE
