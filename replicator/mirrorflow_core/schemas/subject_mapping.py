"""Selects the subjects of a source registry that are copied, and names their copies."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.patterns import compile_patterns
from mirrorflow_core.schemas.registry_contents import DEFAULT_CONTEXT, SchemaVersion, SubjectName

SUBJECTS_KEY: Final = "mirrorflow.schemas.subjects"
CONTEXTS_KEY: Final = "mirrorflow.schemas.contexts"
PREFIX_KEY: Final = "mirrorflow.schemas.subject.prefix"
# Holds the highest id of a source until a version of it is copied. Never copied itself: each flow has its own.
RESERVED_SUBJECT: Final = "mirrorflow-reserved-ids"
_CONTEXT: Final = re.compile(r"\.[-.\w]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectMapping:
    """*contexts* is source context -> target context; copies have *prefix* before their names."""

    subjects: tuple[str, ...] = (".*",)
    contexts: Mapping[str, str]
    prefix: str = ""

    def selected(self, names: Iterable[SubjectName]) -> frozenset[SubjectName]:
        """Returns those of *names* whose context is copied and whose name matches. Raises InvalidSettingError."""
        pattern = compile_patterns(SUBJECTS_KEY, self.subjects)
        return frozenset(
            subject
            for subject in names
            if subject.context in self.contexts
            and subject.name != RESERVED_SUBJECT
            and pattern.matches(subject.name)
        )

    def copy_of(self, subject: SubjectName) -> SubjectName:
        """Returns the name of the copy of *subject*, or of the whole context; its context is one of `contexts`."""
        name = f"{self.prefix}{subject.name}" if subject.name else ""
        return SubjectName(self.contexts[subject.context], name)

    def copied(self, version: SchemaVersion) -> SchemaVersion:
        """Returns *version* as the target has it; all its references are to contexts of `contexts`."""
        return replace(
            version,
            subject=self.copy_of(version.subject),
            references=tuple(
                replace(reference, subject=self.copy_of(reference.subject))
                for reference in version.references
            ),
        )


def read_contexts(pairs: Iterable[str]) -> dict[str, str]:
    """Returns source context -> target context of `source:target` *pairs*; one name alone stands for both.

    Raises InvalidSettingError.
    """
    contexts: dict[str, str] = {}
    for pair in pairs:
        source, _, target = pair.partition(":")
        target = target or source
        for name in (source, target):
            if not _CONTEXT.fullmatch(name):
                raise InvalidSettingError(
                    key=CONTEXTS_KEY,
                    problem=f"{name!r} is no context",
                    action="names of contexts begin with a dot; the default context is a dot alone",
                )
        if source in contexts or target in contexts.values():
            raise InvalidSettingError(
                key=CONTEXTS_KEY,
                problem=f"a context is in two pairs, as in {pair}",
                action="copy each context into one of its own, or two schemas may have one id",
            )
        contexts[source] = target
    return contexts or {DEFAULT_CONTEXT: DEFAULT_CONTEXT}
