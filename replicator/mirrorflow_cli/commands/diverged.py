"""`mirrorflow diverged`: shows and keeps what a cluster had written that never crossed, when it returns after an unplanned switchover.

Its first step is always the fence: applications that were not led over must not write there any more. Nothing is deleted. An
interrupted command is continued by the same command, and writes no record again.
"""

import argparse
import asyncio
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirrorflow_cli.diverged_report import (
    COLUMNS,
    DISPENSABLE,
    recreate_commands,
    rows_of,
    sentences_of,
    survey_json,
    written_json,
    written_sentences,
)
from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, FailedError, UsageError
from mirrorflow_cli.output import add_json_argument, print_json, print_table
from mirrorflow_cli.pair_arguments import add_pair_arguments, pair_from, switchover_settings
from mirrorflow_core.switchover.diverged_tail import TailChoice
from mirrorflow_core.topics.topic_configs import ConfigEntry
from mirrorflow_kafka.admin import admin
from mirrorflow_operator.api.mirror_pair import LoadedPair
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.switchover.diverged_tail import TailSurvey
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings
from mirrorflow_replicator.switchover.returned_side import ReturnedSide, returned_side
from mirrorflow_replicator.switchover.tail_keeping import WrittenTail

if TYPE_CHECKING:
    from mirrorflow_seed.archive.manifest import Manifest

SHOW, KEEP, APPEND, RECREATE, START_BACK = "show", "keep", "append", "recreate", "start-back"
_HOW = {KEEP: "kept in", APPEND: "appended to"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        metavar="ACTION",
        nargs="?",
        default=SHOW,
        choices=(SHOW, KEEP, APPEND, RECREATE, START_BACK),
        help="show: count it (default); keep: write it to topics of its own, or to an archive; append: add it to the topics that applications "
        "use now, with a header; recreate: print the commands that create the old topics again; start-back: let the flow back run, after the choice",
    )
    add_pair_arguments(parser)
    parser.add_argument(
        "--left",
        metavar="MEMBER",
        help="member of the pair that applications have left; writes to it are refused first; required",
    )
    parser.add_argument(
        "--archive",
        metavar="FOLDER",
        help="keep it in an archive of Parquet files: a path, or an address such as s3://bucket/folder",
    )
    parser.add_argument(
        "--topics",
        action="store_true",
        help="keep it in topics TOPIC.diverged.SWITCHOVER, too (the default without --archive)",
    )
    add_json_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Runs the action; returns 1 if a partition's tail cannot be cut out."""
    loaded = pair_from(arguments)
    members = tuple(loaded.pair.spec.members)
    if arguments.left not in members:
        given = (
            "it is missing"
            if arguments.left is None
            else f"{arguments.left} is not a member of {loaded.pair.metadata.name}"
        )
        raise UsageError(f"--left: {given}; write {' or '.join(members)}.")
    if arguments.archive and arguments.action in {SHOW, APPEND}:
        raise UsageError(f"--archive: {arguments.action} writes no archive; write keep.")
    if arguments.topics and arguments.action != KEEP:
        raise UsageError(f"--topics: {arguments.action} keeps nothing; write keep.")
    (to,) = (member for member in members if member != arguments.left)
    settings = switchover_settings(arguments, loaded, to)
    outcome = asyncio.run(_run(arguments, settings))
    archived = _archived(arguments, settings, outcome) if arguments.archive else None
    _finish(arguments, settings, loaded, outcome, archived)
    # A topic that was created again is copied from its beginning by the flow back.
    return EXIT_FAILED if outcome.survey.refused and arguments.action != START_BACK else EXIT_DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What was found and written, and what an archive needs to know of the old side."""

    survey: TailSurvey
    written: tuple[WrittenTail, ...]
    cluster_id: str
    configs: Mapping[str, tuple[ConfigEntry, ...]] | None
    notes: tuple[str, ...]


async def _run(arguments: argparse.Namespace, settings: SwitchoverSettings) -> _Outcome:
    async with returned_side(settings) as side:
        survey = await side.survey()
        written: tuple[WrittenTail, ...] = ()
        if arguments.action == KEEP and (arguments.topics or not arguments.archive):
            written = await side.keep(survey)
        elif arguments.action == APPEND:
            written = await side.append(survey)
        elif arguments.action == RECREATE and not arguments.archive:
            await side.require_written(survey, TailChoice.KEEP)
        elif arguments.action == START_BACK:
            await _start_back(arguments, side, survey)
        configs = await _configs(side, survey) if arguments.archive else None
        return _Outcome(
            survey=survey,
            written=written,
            cluster_id=side.old_side.cluster_id or "",
            configs=configs,
            notes=_notes(settings, written, arguments.action),
        )


async def _start_back(arguments: argparse.Namespace, side: ReturnedSide, survey: TailSurvey) -> None:
    """Starts the flow back if the tail was dealt with: it can be cut out no more, once copies follow it."""
    if arguments.archive:
        await asyncio.to_thread(_require_archived, survey, arguments.archive)
    else:
        await side.require_written(survey, TailChoice.KEEP, TailChoice.APPEND)
    await side.start_back(survey)


async def _configs(side: ReturnedSide, survey: TailSurvey) -> Mapping[str, tuple[ConfigEntry, ...]]:
    topics = sorted({tail.partition.topic for tail in survey.filled})
    return await admin.describe_topic_configs(side.old_side, topics)


def _notes(settings: SwitchoverSettings, written: tuple[WrittenTail, ...], action: str) -> tuple[str, ...]:
    """Returns what a person has to know of the topics that keep the tail."""
    if action != KEEP:
        return ()
    selects = make_selection(settings.back).selects
    names = sorted({tail.target.topic for tail in written if selects(tail.target.topic)})
    return tuple(
        f"Flow {settings.back.flow} selects {name} and copies it to {settings.source}; to prevent that, write it into spec.topics.exclude."
        for name in names
    )


def _archived(
    arguments: argparse.Namespace, settings: SwitchoverSettings, outcome: _Outcome
) -> dict[str, Any]:
    """Writes the archive, or checks that it has the tail; returns what it has. Raises FailedError."""
    if arguments.action != KEEP:
        return _archive_json(arguments.archive, _require_archived(outcome.survey, arguments.archive))
    from mirrorflow_seed.archive.tail_archive import archive_tails  # noqa: PLC0415 the extra `seed`

    with _seed_errors():
        manifest = archive_tails(
            settings.forward,
            outcome.survey,
            arguments.archive,
            cluster_id=outcome.cluster_id,
            configs=outcome.configs,
        )
    return _archive_json(arguments.archive, manifest)


def _require_archived(survey: TailSurvey, folder: str) -> "Manifest":
    from mirrorflow_seed.archive.tail_archive import require_archived  # noqa: PLC0415 the extra `seed`

    with _seed_errors():
        return require_archived(survey, folder)


@contextmanager
def _seed_errors() -> Iterator[None]:
    from mirrorflow_seed.errors import SeedError  # noqa: PLC0415 the extra `seed`

    try:
        yield
    except SeedError as error:
        raise FailedError(str(error), status=error.status) from error


def _archive_json(folder: str, manifest: "Manifest") -> dict[str, Any]:
    return {
        "folder": folder,
        "records": manifest.records,
        "files": [file.path for file in manifest.files],
    }


def _finish(
    arguments: argparse.Namespace,
    settings: SwitchoverSettings,
    loaded: LoadedPair,
    outcome: _Outcome,
    archived: dict[str, Any] | None,
) -> None:
    survey, old_side = outcome.survey, settings.source
    commands = _commands(arguments, settings, loaded, survey) if arguments.action == RECREATE else []
    if arguments.json:
        report = survey_json(survey, old_side=old_side, new_side=settings.to)
        report |= {
            "written": written_json(outcome.written),
            "archive": archived,
            "notes": list(outcome.notes),
        }
        print_json(report | ({"commands": commands} if commands else {}))
        return
    if rows := rows_of(survey):
        print_table(COLUMNS, rows, dispensable=DISPENSABLE)
    print("\n".join(sentences_of(survey, old_side)))
    if outcome.written:
        print("\n".join(written_sentences(outcome.written, _HOW[arguments.action])))
    if archived is not None:
        print(f"The archive {archived['folder']} has {archived['records']} records of it.")
    if outcome.notes:
        print("\n".join(outcome.notes))
    if arguments.action == START_BACK:
        print(f"Flow {settings.back.flow} may run now, and copies what was written on {settings.to} since.")
    if commands:
        print(
            f"The tail is kept. These commands delete it from {old_side}, and copy these topics from {settings.to} again. "
            "MirrorFlow deletes no topic of yours; run them yourself:"
        )
        print("\n".join(f"  {command}" for command in commands))


def _commands(
    arguments: argparse.Namespace, settings: SwitchoverSettings, loaded: LoadedPair, survey: TailSurvey
) -> list[str]:
    names = {tail.partition.topic for tail in survey.tails if tail.count.records or tail.tail.lost}
    flow = loaded.flows[settings.to]
    start_back = ["mirrorflow", "diverged", START_BACK, "-f", arguments.file, "--left", settings.source]
    for option, value, default in (
        ("--secrets", arguments.secrets, "."),
        ("--archive", arguments.archive, None),
    ):
        if value != default:
            start_back += [option, value]
    return recreate_commands(
        sorted(names),
        bootstrap_servers=",".join(flow.spec.target.bootstrap_servers),
        flow=flow.metadata.name,
        start_back=shlex.join(start_back),
    )
