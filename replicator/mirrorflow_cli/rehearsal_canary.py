"""Runs the application of `mirrorflow switchover --rehearse --canary-topic` from its arguments to its result."""

import argparse
import contextlib
import sys
from collections.abc import AsyncIterator

from mirrorflow_cli.errors import UsageError
from mirrorflow_core.switchover.canary import CanaryRequest
from mirrorflow_replicator.switchover.canary_application import (
    CanaryApplication,
    copy_limit_s,
    started_canary,
    why_not_selected,
)
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings

CANARY_PACKAGE = "confluent-kafka"


def add_canary_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a rehearsal beside an application."""
    parser.add_argument(
        "--canary-topic",
        metavar="TOPIC",
        help="for --rehearse: write this topic with confluent-kafka meanwhile, and measure what an application sees; the flow must copy it. It "
        "is created with one partition if it does not exist",
    )
    parser.add_argument(
        "--canary-group",
        metavar="GROUP",
        help="group that reads the canary topic, first on the active member, then on the other one; it must follow (default: TOPIC)",
    )


def refuse_canary_contradictions(arguments: argparse.Namespace) -> None:
    """Raises UsageError if the options of the application contradict others."""
    for option, value in (
        ("--canary-topic", arguments.canary_topic),
        ("--canary-group", arguments.canary_group),
    ):
        if value is not None and not arguments.rehearse:
            raise UsageError(f"{option} is for a rehearsal; add --rehearse, or remove {option}.")
    if arguments.canary_group is not None and arguments.canary_topic is None:
        raise UsageError("--canary-group reads a canary topic; add --canary-topic.")


@contextlib.asynccontextmanager
async def running_canary(
    arguments: argparse.Namespace, settings: SwitchoverSettings
) -> AsyncIterator[CanaryApplication]:
    """Runs the application meanwhile. When this begins, it reads and writes, and its topic is copied; nothing is fenced before.

    Raises UsageError, CanaryFailedError, MirrorFlowError.
    """
    topic, group = arguments.canary_topic, arguments.canary_group or arguments.canary_topic
    if problem := why_not_selected(settings, topic, group):
        raise UsageError(f"--canary-topic: {problem}.")
    limit_s = copy_limit_s(settings)
    print(f"Waits until the flow copies {topic}; at most {limit_s:.0f} s.", file=sys.stderr, flush=True)
    async with contextlib.AsyncExitStack() as stack:
        request = CanaryRequest(topic=topic, group=group)
        try:
            canary = await stack.enter_async_context(started_canary(settings, request))
        except ModuleNotFoundError as error:
            raise UsageError(
                f"--canary-topic: the Python package {CANARY_PACKAGE} is not installed; in MirrorFlow's folder: pip install '.[cli,rehearsal]'."
            ) from error
        yield canary
