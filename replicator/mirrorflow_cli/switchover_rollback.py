"""`mirrorflow switchover rollback`: undoes a switchover that has not promoted, with the source alone if the target does not respond."""

import argparse

from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, FailedError
from mirrorflow_cli.loss_report import degraded_sentence
from mirrorflow_cli.pair_arguments import switchover_settings
from mirrorflow_cli.switchover_progress import refresh_local_switchover, shown_session
from mirrorflow_cli.switchover_report import StepDisplay, report_of, sentence_of, session_report
from mirrorflow_cli.switchover_report_files import write_result
from mirrorflow_cli.switchover_signals import rolling_back_at_signals
from mirrorflow_core.switchover import guards
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.states import PROMOTED, SwitchoverState
from mirrorflow_operator.api.mirror_pair import LoadedPair
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings
from mirrorflow_replicator.switchover.session import SwitchoverSession, readable_journal
from mirrorflow_replicator.switchover.source_rollback import source_rollback
from mirrorflow_replicator.switchover.unplanned_session import UnplannedSession, unplanned_session

FOR_ROLLBACK = "--accept-two-active"


async def roll_back(arguments: argparse.Namespace, loaded: LoadedPair, settings: SwitchoverSettings) -> int:
    """Rolls the newest switchover of the pair back; returns the exit status. Raises FailedError, MirrorFlowError."""
    async with readable_journal(settings) as read:
        newest = read.journal.newest
    if newest is None or newest.is_final:
        state = (
            "was never switched over"
            if newest is None
            else f"has no switchover under way: {sentence_of(newest)}"
        )
        raise FailedError(f"{settings.pair} {state}")
    if newest.state is SwitchoverState.DEGRADED:
        raise FailedError(f"Switchover {newest.id} cannot be rolled back. {degraded_sentence(newest)}")
    if newest.state in PROMOTED:
        raise FailedError(
            f"Switchover {newest.id} has promoted {newest.to} and cannot be rolled back. Complete it with "
            f"`mirrorflow switchover -f {arguments.file} --to {newest.to}`, then switch back with --to {newest.source}."
        )
    display = StepDisplay()
    own = switchover_settings(arguments, loaded, newest.to)
    if newest.to in read.problems and not newest.is_unplanned:
        return await _roll_back_alone(arguments, own, newest, read.problems[newest.to])
    if newest.is_unplanned:
        async with unplanned_session(own, on_step=display.show) as unplanned:
            last = await _run(unplanned, newest, display)
        report = report_of(last)
    else:
        async with shown_session(arguments, own, on_step=display.show) as session:
            last = await _run(session, newest, display)
        report = session_report(last, session)
    write_result(arguments, report, [sentence_of(last)])
    # A rehearsal whose process was killed while it rolled back ends as one that was completed.
    is_undone = last.state in {SwitchoverState.LIFTED, SwitchoverState.REFUSED, SwitchoverState.REHEARSED}
    return EXIT_DONE if is_undone else EXIT_FAILED


async def _run(
    session: SwitchoverSession | UnplannedSession, newest: SwitchoverRecord, display: StepDisplay
) -> SwitchoverRecord:
    session.observer.request_rollback()
    with rolling_back_at_signals(session.observer.request_rollback, display):
        return await session.runner.run(session.journal.newest or newest)


async def _roll_back_alone(
    arguments: argparse.Namespace, settings: SwitchoverSettings, newest: SwitchoverRecord, problem: str
) -> int:
    """Lets applications write to the source again, while the target does not respond. Raises FailedError if that may be promoted."""
    source, to, state = newest.source, newest.to, newest.state.value
    if newest.state is SwitchoverState.CHECKING:
        raise FailedError(
            f"Switchover {newest.id} has changed nothing yet: {source} accepts writes. {problem}"
        )
    if not guards.is_unpromoted(newest):
        raise FailedError(
            f"{problem} Switchover {newest.id} is in state {state}, so {to} may have been promoted, which only its journal shows. It can be "
            f"rolled back or completed when {to} responds."
        )
    if not arguments.accept_two_active:
        raise FailedError(
            f"{problem} The journal of {source} shows that switchover {newest.id} has promoted nothing (state {state}). If no one has moved "
            f"applications to {to} by an unplanned switchover since, add {FOR_ROLLBACK}: applications can write to {source} again then. "
            "If someone has, both members would be active."
        )
    display = StepDisplay()
    async with source_rollback(settings, newest.id, on_step=display.show) as (present, runner):
        with rolling_back_at_signals(lambda: None, display):
            last = await runner.run(present)
    refresh_local_switchover(last)
    sentences = [
        f"Applications can write to {source} again. Switchover {last.id} is in state {last.state.value} until {to} responds.",
        f"Run `mirrorflow switchover rollback -f {arguments.file}` then: it lets the flow to {to} copy again, if that was ended.",
    ]
    write_result(arguments, report_of(last), sentences)
    return EXIT_DONE
