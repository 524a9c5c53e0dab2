"""Keeps what failed for single groups, topics and permissions in the passes of a checkpoint connector."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, TypeVar

from mirrorflow_core.errors import (
    AuthenticationFailedError,
    ClusterError,
    IdentityError,
    InvalidSettingError,
    MirrorFlowError,
    UnreachableError,
)
from mirrorflow_kafka.admin import groups

GROUP: Final = "{group}"  # placeholder for the group's name
Result = TypeVar("Result")
# The subject of a warning: its kind, its name, and what cannot be done with it. The kinds are "group", "topic", "setting",
# "cluster", and "metadata" for a group that is moved without it.
Subject = tuple[str, str, str]
# Errors that are not about a single group, topic or permission.
_WHOLE_CLUSTER = (UnreachableError, AuthenticationFailedError, IdentityError)


class PassWarnings:
    """A warning for each subject that has failed, until it succeeds again. Errors of a whole cluster are raised instead."""

    def __init__(self) -> None:
        self._sentences: dict[Subject, str] = {}

    @property
    def sentences(self) -> tuple[str, ...]:
        """All warnings, in the order in which their subjects failed first."""
        return tuple(self._sentences.values())

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """What has failed, in the same order."""
        return tuple(self._sentences)

    def items(self) -> Iterable[tuple[Subject, str]]:
        """Returns each subject that has failed, with its warning."""
        return self._sentences.items()

    def of(self, subject: Subject) -> str | None:
        """Returns the warning about *subject*; None if there is none."""
        return self._sentences.get(subject)

    def note(self, subject: Subject, sentence: str | None) -> None:
        """Replaces the warning about *subject*; None: it has succeeded."""
        if sentence is None:
            self._sentences.pop(subject, None)
        else:
            self._sentences[subject] = sentence

    def note_listing(self, alias: str, problem: ClusterError | None) -> None:
        """Notes whether every broker of cluster *alias* has listed its groups."""
        sentence = None if problem is None else f"Not every broker of {alias} lists its groups: {problem}"
        self.note(("cluster", alias, "groups"), sentence)

    def keep_groups(self, names: Collection[str]) -> None:
        """Drops the warnings about groups other than *names*."""
        self._sentences = {
            subject: sentence
            for subject, sentence in self._sentences.items()
            if subject[0] not in {"group", "metadata"} or subject[1] in names
        }

    async def isolated(self, subject: Subject, failed: str, step: Awaitable[Result]) -> Result | None:
        """Returns the result of *step*; None if it failed, which becomes a warning.

        Raises errors of the whole cluster.
        """
        try:
            result = await step
        except _WHOLE_CLUSTER:
            raise
        except MirrorFlowError as error:
            self.note(subject, f"{failed}: {error}")
            return None
        self.note(subject, None)
        return result

    async def for_each_group(
        self,
        names: Iterable[str],
        ask: Callable[[str], Awaitable[None]],
        side: str,
        failed: str,
        *,
        is_pass: bool = True,
    ) -> None:
        """Calls *ask* for each group, GROUPS_AT_ONCE at a time.

        A failure becomes a warning. If all groups of a pass fail with an error of the whole cluster, it is raised.
        """
        waiting, has_result = list(names), False
        for begin in range(0, len(waiting), groups.GROUPS_AT_ONCE):
            asked = waiting[begin : begin + groups.GROUPS_AT_ONCE]
            results = await asyncio.gather(*(ask(name) for name in asked), return_exceptions=True)
            for name, result in zip(asked, results, strict=True):
                subject = ("group", name, side)
                if isinstance(result, ClusterError | InvalidSettingError):
                    self.note(subject, f"{failed.replace(GROUP, name)}: {result}")
                elif isinstance(result, BaseException):
                    raise result
                else:
                    self.note(subject, None)
            lost = [result for result in results if isinstance(result, _WHOLE_CLUSTER)]
            has_result |= len(lost) < len(asked)
            if (
                is_pass
                and len(lost) == len(asked)
                and (not has_result or len(asked) == groups.GROUPS_AT_ONCE)
            ):
                raise lost[0]
