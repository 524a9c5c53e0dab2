"""`mirrorflow switchover`: moves the applications of a pair to its other cluster, and can undo that until it promotes.

Each step is announced in the journal on both clusters, so the same command continues after a crash. Ctrl-C rolls back before
promoting; after it the switchover can only be completed, so it continues. With --unplanned, the target alone is needed.
"""

import argparse
import asyncio
import secrets
import time
from dataclasses import replace
from pathlib import Path

from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_SIGNAL_BASE, FailedError, UsageError
from mirrorflow_cli.flow_progress import read_flow_progress
from mirrorflow_cli.loss_report import loss_report, loss_sentences
from mirrorflow_cli.output import add_json_argument
from mirrorflow_cli.pair_arguments import add_pair_arguments, pair_from, switchover_settings
from mirrorflow_cli.rehearsal_canary import add_canary_arguments, refuse_canary_contradictions, running_canary
from mirrorflow_cli.switchover_progress import refresh_local_switchover, show_canary_report, shown_session
from mirrorflow_cli.switchover_report import (
    StepDisplay,
    canary_report,
    canary_sentence,
    completion_of,
    continues_alone,
    outcome_of,
    print_if_read,
    report_of,
    sentence_of,
    session_report,
)
from mirrorflow_cli.switchover_report_files import check_report_files, write_result
from mirrorflow_cli.switchover_rollback import FOR_ROLLBACK, roll_back
from mirrorflow_cli.switchover_signals import rolling_back_at_signals
from mirrorflow_cli.switchover_status import show_status
from mirrorflow_cli.verification_results import NOT_GIVEN, add_verification_argument, last_verification
from mirrorflow_core.errors import ClusterError
from mirrorflow_core.replication_policy import flow_name
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_operator.api.mirror_pair import Hook, LoadedPair
from mirrorflow_replicator.switchover.canary_application import CanaryApplication
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings
from mirrorflow_replicator.switchover.session import SwitchoverSession
from mirrorflow_replicator.switchover.unplanned_session import (
    UnplannedSession,
    complete_alone,
    journal_of_target,
    needs_target_alone,
    unplanned_session,
)

STATUS, ROLLBACK = "status", "rollback"
_ACTIONS = {STATUS: show_status, ROLLBACK: roll_back}
_COMPLETED = frozenset({SwitchoverState.DONE, SwitchoverState.REHEARSED, SwitchoverState.DEGRADED})
_REQUEST_OPTIONS = (
    "to", "rehearse", "live_groups", "unplanned", "restore", "accept_loss", "progress", "verification", "canary_topic", "canary_group",
)  # fmt: skip
_Session = SwitchoverSession | UnplannedSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        metavar="ACTION",
        nargs="?",
        choices=(STATUS, ROLLBACK),
        help="status: show the newest switchover; rollback: undo one that has not promoted",
    )
    add_pair_arguments(parser)
    parser.add_argument("--to", metavar="MEMBER", help="member of the pair that applications move to")
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="do everything up to promoting, then undo it and report the times",
    )
    parser.add_argument(
        "--live-groups",
        action="store_true",
        help="do not wait until consumers are stopped; they may read records again",
    )
    parser.add_argument(
        "--unplanned",
        action="store_true",
        help="the other member is lost: show what is lost with it, and with --accept-loss, switch over without it",
    )
    parser.add_argument(
        "--restore",
        action="store_true",
        help="planned, back to the member that an unplanned switchover has left and `mirrorflow diverged` has reconciled; refused otherwise",
    )
    add_verification_argument(parser)
    _add_risk_arguments(parser)
    add_canary_arguments(parser)
    parser.add_argument(
        "--progress",
        metavar="URL",
        action="append",
        default=[],
        help="for --unplanned: HTTP address of a process of the flow, which may know ends of the lost member; may be repeated",
    )
    parser.add_argument(
        "--report",
        dest="report_files",
        action="append",
        default=[],
        metavar="FILE",
        help="write a report of the states and their times: JSON, or a page if FILE ends in .html; repeatable",
    )
    add_json_argument(parser)


def _add_risk_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="for --unplanned: switch over although records that were not copied are lost",
    )
    parser.add_argument(
        FOR_ROLLBACK,
        action="store_true",
        help="for rollback while the other member is lost: let applications write again, although someone may have moved them there unplanned",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Runs the action; returns 1 for a switchover that was refused or rolled back."""
    check_report_files(arguments.report_files)
    loaded = pair_from(arguments)
    members = tuple(loaded.pair.spec.members)
    if arguments.accept_two_active and arguments.action != ROLLBACK:
        raise UsageError(f"{FOR_ROLLBACK} is for rollback alone; remove it.")
    if arguments.action is not None:
        options = [f"--{name.replace('_', '-')}" for name in _REQUEST_OPTIONS if getattr(arguments, name)]
        if options:
            raise UsageError(f"{arguments.action} takes the pair alone; remove {' and '.join(options)}.")
        if arguments.action == ROLLBACK:
            _refuse_fence_of_kubernetes(loaded)
        settings = switchover_settings(arguments, loaded, members[0])
        return asyncio.run(_ACTIONS[arguments.action](arguments, loaded, settings))
    if arguments.to not in members:
        given = (
            "it is missing"
            if arguments.to is None
            else f"{arguments.to} is not a member of {loaded.pair.metadata.name}"
        )
        raise UsageError(f"--to: {given}; write {' or '.join(members)}.")
    _refuse_contradictions(arguments)
    only_shows = arguments.rehearse or (arguments.unplanned and not arguments.accept_loss)
    if not only_shows:
        _refuse_objects_of_kubernetes(loaded)
    settings = _with_verification(arguments, switchover_settings(arguments, loaded, arguments.to))
    if arguments.canary_topic is not None:
        return asyncio.run(_rehearse_with_canary(arguments, settings))
    return asyncio.run((_switch_unplanned if arguments.unplanned else _switch)(arguments, settings))


def _with_verification(arguments: argparse.Namespace, settings: SwitchoverSettings) -> SwitchoverSettings:
    """Returns *settings* with the last verification that --verification has. Raises UsageError if that is no folder."""
    if arguments.verification is None:
        return replace(settings, verification_source=NOT_GIVEN)
    folder, flow = Path(arguments.verification), flow_name(settings.forward.flow)
    return replace(
        settings,
        last_verification=last_verification(folder, flow, settings.source, settings.to),
        verification_source=f"{folder} has no such result",
    )


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    if arguments.restore and (arguments.rehearse or arguments.unplanned):
        other = "--unplanned" if arguments.unplanned else "--rehearse"
        raise UsageError(f"--restore is a planned switchover; remove --restore or {other}.")
    refuse_canary_contradictions(arguments)
    if not arguments.unplanned:
        for option, is_given in (
            ("--accept-loss", arguments.accept_loss),
            ("--progress", bool(arguments.progress)),
        ):
            if is_given:
                raise UsageError(f"{option} is for --unplanned alone; add --unplanned, or remove {option}.")
        return
    if arguments.rehearse:
        raise UsageError(
            "--unplanned cannot be rehearsed: without --accept-loss it changes nothing; remove --rehearse."
        )
    if arguments.live_groups:
        raise UsageError("--unplanned waits for no consumers; remove --live-groups.")


def _refuse_objects_of_kubernetes(loaded: LoadedPair) -> None:
    """Raises UsageError where an object of Kubernetes fences or leads clients: this command has no access to its API server."""
    _refuse_fence_of_kubernetes(loaded)
    endpoint = loaded.pair.spec.endpoint
    if endpoint is None:
        return
    if endpoint.hook is not None:
        _refuse_job("spec.endpoint.hook", endpoint.hook)
        return
    field = "configMap" if endpoint.service is None else "service"
    raise UsageError(
        f"spec.endpoint.{field}: only a Switchover in Kubernetes switches it; create one, or write a hook that does it, with kubectl patch."
    )


def _refuse_fence_of_kubernetes(loaded: LoadedPair) -> None:
    """Raises UsageError where a Job or a NetworkPolicy is the fence, which this command can neither set nor lift."""
    fence = loaded.pair.spec.fence
    if fence.hook is not None:
        _refuse_job("spec.fence.hook", fence.hook)
    if fence.network_policy is not None:
        raise UsageError(
            "spec.fence.networkPolicy: only a Switchover in Kubernetes puts it in force; create one, or choose another fence.method in this file."
        )


def _refuse_job(path: str, hook: Hook) -> None:
    if hook.job is not None:
        raise UsageError(
            f"{path}.job: only a Switchover in Kubernetes runs it; create one, or write a command into the hook of this file."
        )


async def _rehearse_with_canary(arguments: argparse.Namespace, settings: SwitchoverSettings) -> int:
    """Rehearses beside an application. Nothing is fenced before that reads and writes, and its topic is copied."""
    async with running_canary(arguments, settings) as canary:
        return await _switch_with_both(arguments, settings, canary)


async def _switch(arguments: argparse.Namespace, settings: SwitchoverSettings) -> int:
    try:
        return await _switch_with_both(arguments, settings)
    except ClusterError as error:
        # Only from opening: what fails later is repeated.
        status = None if arguments.rehearse else await _complete_alone(arguments, settings, error)
        if status is None:
            raise
        return status


async def _switch_with_both(
    arguments: argparse.Namespace, settings: SwitchoverSettings, canary: CanaryApplication | None = None
) -> int:
    display = StepDisplay()

    def show(step: SwitchoverStep, problem: str) -> None:
        if canary is not None:
            canary.note(step.record.state)
        display.show(step, problem)

    planned = SwitchoverType.RESTORE if arguments.restore else SwitchoverType.PLANNED
    kind = SwitchoverType.REHEARSAL if arguments.rehearse else planned
    async with shown_session(arguments, settings, on_step=show) as session:
        record = _unfinished(session, settings, kind) or _request(arguments, settings, kind)
        with rolling_back_at_signals(session.observer.request_rollback, display) as signals:
            last = await session.runner.run(record)
    result = None if canary is None else await asyncio.to_thread(canary.finish, last.state)
    if result is not None:
        show_canary_report(last.id, canary_report(result))
    late = ["The signal came after promoting, so the switchover was completed."] if signals else []
    is_completed = last.state is SwitchoverState.DONE
    sentences = [*session.checks.notes, sentence_of(last), *(late if is_completed else [])]
    sentences += [] if result is None else [canary_sentence(result)]
    write_result(arguments, session_report(last, session) | canary_report(result), sentences)
    if signals and last.state not in _COMPLETED:
        return EXIT_SIGNAL_BASE + signals[0]
    has_failed = last.state not in _COMPLETED or (result is not None and result.problem)
    return EXIT_FAILED if has_failed else EXIT_DONE


async def _complete_alone(
    arguments: argparse.Namespace, settings: SwitchoverSettings, error: ClusterError
) -> int | None:
    """Continues a switchover that has promoted, although its source does not respond; None if the target's journal shows none."""
    try:
        newest = (await journal_of_target(settings)).newest
    except ClusterError:
        return None
    if newest is None or not needs_target_alone(newest, settings):
        return None
    print_if_read(f"{error} {continues_alone(newest)}")
    display = StepDisplay()
    async with unplanned_session(settings, on_step=display.show) as session:
        with rolling_back_at_signals(session.observer.request_rollback, display):
            last = await complete_alone(session, newest)
    refresh_local_switchover(last)
    write_result(arguments, report_of(last), [outcome_of(last), *completion_of(last, arguments.file)])
    return EXIT_DONE


async def _switch_unplanned(arguments: argparse.Namespace, settings: SwitchoverSettings) -> int:
    display, kind = StepDisplay(), SwitchoverType.UNPLANNED
    progress = read_flow_progress(arguments.progress)
    async with unplanned_session(settings, on_step=display.show, progress=progress) as session:
        newest = session.journal.newest
        if newest is not None and needs_target_alone(newest, settings):
            raise FailedError(f"{outcome_of(newest)} {' '.join(completion_of(newest, arguments.file))}")
        record = _unfinished(session, settings, kind) or _request(arguments, settings, kind)
        with rolling_back_at_signals(session.observer.request_rollback, display) as signals:
            last = await session.runner.run(record)
        groups = session.observer.groups or ()
    report = report_of(last, groups=groups) | loss_report(last)
    write_result(arguments, report, [*loss_sentences(last), outcome_of(last)])
    if signals and last.state not in _COMPLETED:
        return EXIT_SIGNAL_BASE + signals[0]
    return EXIT_DONE if last.state in _COMPLETED else EXIT_FAILED


def _request(
    arguments: argparse.Namespace, settings: SwitchoverSettings, kind: SwitchoverType
) -> SwitchoverRecord:
    return SwitchoverRecord(
        id=f"{settings.pair}-{secrets.token_hex(4)}",
        pair=settings.pair,
        type=kind,
        source=settings.source,
        to=settings.to,
        created_ms=time.time_ns() // 1_000_000,
        limits=settings.limits,
        allows_live_groups=arguments.live_groups,
        accepts_loss=arguments.accept_loss,
    )


def _unfinished(
    session: _Session, settings: SwitchoverSettings, kind: SwitchoverType
) -> SwitchoverRecord | None:
    """Returns the switchover that the arguments name and that has not ended, so that it is continued."""
    newest = session.journal.newest
    if newest is None or newest.is_final or (newest.to, newest.type) != (settings.to, kind):
        return None
    if newest.is_unplanned and newest.state is SwitchoverState.ROLLING_BACK:
        return None  # it may wait for a source that is lost; a new one does not
    print_if_read(f"Continues switchover {newest.id}, which is in state {newest.state.value}.")
    return newest
