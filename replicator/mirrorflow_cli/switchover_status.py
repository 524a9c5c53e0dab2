"""`mirrorflow switchover status`: shows the newest switchover of a pair, its fences, and what groups would read again."""

import argparse
import asyncio
import time
from collections.abc import Mapping

from mirrorflow_cli.errors import EXIT_DONE
from mirrorflow_cli.loss_report import loss_report, loss_sentences
from mirrorflow_cli.pair_arguments import switchover_settings
from mirrorflow_cli.switchover_progress import fence_text, refresh_local_switchover
from mirrorflow_cli.switchover_report import (
    completion_of,
    outcome_of,
    predicted_report,
    predicted_sentence,
    report_of,
)
from mirrorflow_cli.switchover_report_files import write_result
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_operator.api.mirror_pair import LoadedPair
from mirrorflow_replicator.switchover.flow_mover import newest_claim
from mirrorflow_replicator.switchover.pair_settings import PairClusters, SwitchoverSettings
from mirrorflow_replicator.switchover.read_again import ReadAgain, predict_read_again
from mirrorflow_replicator.switchover.session import ReadableJournal, readable_journal

_UNKNOWN = "It is unknown what groups would read again: "
PREDICT_TIMEOUT_S = 30.0  # for which `status` reads the offsets of all groups
_FENCE_SENTENCES: Mapping[FenceState | None, str] = {
    FenceState.COMPLETE: "A fence keeps applications from writing to {}.",
    FenceState.PARTIAL: "A part of the fence of {} is there: applications may write to some of its topics.",
    None: "It is not known whether the fence of {} is there.",
}


async def show_status(arguments: argparse.Namespace, loaded: LoadedPair, settings: SwitchoverSettings) -> int:
    """Shows what the journals and fences of the pair say; returns the exit status. Raises MirrorFlowError."""
    async with readable_journal(settings) as read:
        states = {alias: await read.fence_state(settings, alias) for alias in loaded.pair.spec.members}
        predicted = await _predicted(arguments, loaded, read)
    newest = read.journal.newest
    if newest is not None:
        refresh_local_switchover(newest)
    fences = {alias: fence_text(state) for alias, state in states.items()}
    report = {
        "pair": settings.pair,
        "active": read.journal.active,
        "fences": fences,
        "newest": None if newest is None else report_of(newest) | loss_report(newest),
        "predicted": predicted_report(predicted),
        "unread": dict(read.problems),
    }
    sentences = [f"{settings.pair} was never switched over." if newest is None else outcome_of(newest)]
    sentences += [] if newest is None else [*loss_sentences(newest), *completion_of(newest, arguments.file)]
    sentences += [
        f"The journal of {alias} was not read: {problem}" for alias, problem in read.problems.items()
    ]
    sentences += [
        _FENCE_SENTENCES[state].format(alias) for alias, state in states.items() if state in _FENCE_SENTENCES
    ]
    sentences.append(predicted_sentence(predicted))
    write_result(arguments, report, sentences)
    return EXIT_DONE


async def _predicted(
    arguments: argparse.Namespace, loaded: LoadedPair, read: ReadableJournal
) -> ReadAgain | str:
    """Returns what groups would read again if applications were moved now, or why that is not known, as a sentence."""
    newest = read.journal.newest
    if read.problems:
        return f"{_UNKNOWN}both clusters have to respond."
    if newest is not None and not newest.is_final:
        return f"{_UNKNOWN}switchover {newest.id} has not ended."
    try:
        async with asyncio.timeout(PREDICT_TIMEOUT_S):
            active = read.journal.active or await _running_member(arguments, loaded, read)
            if active is None:
                return f"{_UNKNOWN}before the first switchover, the flow of one member has to run."
            (to,) = (alias for alias in loaded.pair.spec.members if alias != active)
            settings, source = switchover_settings(arguments, loaded, to), read.clusters[active]
            clusters = PairClusters(source=source, target=read.clusters[to], probe=source)
            return await predict_read_again(settings, clusters, time.time_ns() // 1_000_000)
    except TimeoutError:
        return f"{_UNKNOWN}their offsets were not read within {PREDICT_TIMEOUT_S:.0f} s."
    except MirrorFlowError as error:
        return f"{_UNKNOWN}{error}"


async def _running_member(
    arguments: argparse.Namespace, loaded: LoadedPair, read: ReadableJournal
) -> str | None:
    """Returns the member whose flow runs, by its claim; None if that is none or both. Raises MirrorFlowError."""
    running = []
    for to in loaded.pair.spec.members:
        forward = switchover_settings(arguments, loaded, to).forward
        claim = await newest_claim(read.clusters[to], forward)
        if claim is not None and not claim.left and not claim.ended:
            running.append(forward.source_alias)
    return running[0] if len(running) == 1 else None
