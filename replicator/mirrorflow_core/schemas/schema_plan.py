"""Plans what must be written to a target registry so that it has the schemas of the source under the same ids.

    contents of both registries ──> selected versions and all they refer to ──> conflicts, and steps in their order

Ids come from one registry only: a context is written while its mode is IMPORT, in which it issues no ids of its own. The plan sets
this mode where the context is empty, and refuses a context that issues ids already. So the two directions of a pair cannot
issue one id for two schemas: a context is either the original or the copy. Two directions that begin at once on empty registries make
both contexts copies; both report it as long as neither has a schema.

The order of steps: references before what refers to them, versions of a subject ascending, then soft deletes in reverse, because a
registry deletes nothing that is referred to. A version that returns under the id of a deleted one is registered after that deletion and
those of what refers to it, also if the source has deleted the earlier one for good. If something that stays refers to the earlier one, the
returning version is a conflict: a registry gives a schema no second version beside a first one. Any prefix of the steps may have been
carried out: the next plan continues from the contents.

The highest id of a source context is reserved by a placeholder if no copied version has it, so that the target issues higher ids
once it leaves IMPORT. What only the target has is left as it is: records may still need it.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from typing import Final

from mirrorflow_core.schemas.registry_contents import (
    AVRO,
    IMPORT,
    READ_ONLY,
    READ_WRITE,
    RegistryContents,
    SchemaVersion,
    SubjectName,
)
from mirrorflow_core.schemas.subject_mapping import RESERVED_SUBJECT, SubjectMapping

VersionKey = tuple[SubjectName, int]
CONTEXTS_HINT: Final = "spec.schemas.contexts, mirrorflow.schemas.contexts"
_READ_ONLY_MODES: Final = frozenset({READ_ONLY, "READONLY_OVERRIDE"})


class SchemaConflictKind(Enum):
    """Why a version, or a whole context, is not copied."""

    ID_TAKEN = "IdTaken"
    VERSION_TAKEN = "VersionTaken"
    REFERENCE_MISSING = "ReferenceMissing"
    STILL_REFERENCED = "StillReferenced"
    TARGET_ISSUES_IDS = "TargetIssuesIds"
    SOURCE_IS_COPY = "SourceIsCopy"
    BOTH_ARE_COPIES = "BothAreCopies"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaConflict:
    """One conflict; *subject* is on the source, *message* a sentence."""

    kind: SchemaConflictKind
    subject: SubjectName
    version: int | None = None  # None: the whole context
    message: str


@dataclass(frozen=True, slots=True)
class SetContextMode:
    """Puts an empty context into IMPORT."""

    context: str


@dataclass(frozen=True, slots=True)
class SetSubjectMode:
    """Gives a subject a mode of its own; None: that of its context."""

    subject: SubjectName
    mode: str | None


@dataclass(frozen=True, slots=True)
class RegisterVersion:
    """Registers a version under its id and number."""

    version: SchemaVersion


@dataclass(frozen=True, slots=True)
class DeleteVersion:
    """Deletes a version softly; *permanently* for a placeholder."""

    subject: SubjectName
    version: int
    permanently: bool = False


@dataclass(frozen=True, slots=True)
class SetCompatibility:
    """Gives a subject, or a context, the settings in a JSON text; None: none of its own."""

    scope: SubjectName
    settings: str | None


SchemaStep = SetContextMode | SetSubjectMode | RegisterVersion | DeleteVersion | SetCompatibility


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaPlan:
    """*subjects* and *versions* are numbers on the source of what is copied.

    *missing* is the number of versions that the target lacks, *missing_after* what it lacks after the steps, because of conflicts.
    """

    steps: tuple[SchemaStep, ...] = ()
    conflicts: tuple[SchemaConflict, ...] = ()
    subjects: int = 0
    versions: int = 0
    missing: int = 0
    missing_after: int = 0


@dataclass(slots=True)
class _TargetState:
    """The target's versions and ids as they are after the steps so far.

    *wanted*: the keys of all copies; *leaving*: those of them that the source has deleted softly.
    """

    versions: dict[VersionKey, SchemaVersion]
    wanted: frozenset[VersionKey]
    leaving: Mapping[VersionKey, SchemaVersion]
    by_id: dict[tuple[str, int], SchemaVersion] = field(default_factory=dict)
    reserved: dict[tuple[str, int], SchemaVersion] = field(default_factory=dict)
    referrers: dict[VersionKey, set[VersionKey]] = field(default_factory=dict)
    under_one_id: dict[tuple[SubjectName, int], set[VersionKey]] = field(default_factory=dict)

    def add(self, version: SchemaVersion) -> None:
        self.versions[version.key] = version
        by_id = self.reserved if version.subject.name == RESERVED_SUBJECT else self.by_id
        by_id.setdefault((version.subject.context, version.schema_id), version)
        self.under_one_id.setdefault((version.subject, version.schema_id), set()).add(version.key)
        for reference in version.references:
            self.referrers.setdefault((reference.subject, reference.version), set()).add(version.key)

    def delete(self, key: VersionKey) -> None:
        self.add(replace(self.versions[key], is_deleted=True))

    def earlier_versions(self, copy: SchemaVersion) -> list[VersionKey]:
        """Returns the other versions of the subject that have the schema of *copy*, and are to be deleted because of it.

        Two versions that the source has both stay: imports may leave them.
        """
        same = self.under_one_id.get((copy.subject, copy.schema_id), ())
        return sorted(
            key
            for key in same
            if key != copy.key
            and not self.versions[key].is_deleted
            and (key in self.leaving or key not in self.wanted)
        )

    def deletions_before(self, key: VersionKey) -> tuple[VersionKey, ...] | SchemaVersion:
        """Returns what must be deleted before *key* can be, in order, or the version that refers to it and stays."""
        graph: dict[VersionKey, list[VersionKey]] = {}
        waiting = [key]
        while waiting:
            current = waiting.pop()
            graph[current] = [
                referrer
                for referrer in sorted(self.referrers.get(current, ()))
                if not self.versions[referrer].is_deleted
            ]
            for referrer in graph[current]:
                if not self._is_leaving(referrer):
                    return self.versions[referrer]
                if referrer not in graph:
                    waiting.append(referrer)
        try:
            return tuple(TopologicalSorter(graph).static_order())[:-1]
        except CycleError as error:
            return self.versions[error.args[1][0]]

    def _is_leaving(self, key: VersionKey) -> bool:
        version, copy = self.versions[key], self.leaving.get(key)
        return copy is not None and (version.schema_id, version.content) == (copy.schema_id, copy.content)


def plan_schemas(
    source: RegistryContents,
    target: RegistryContents,
    mapping: SubjectMapping,
    refused: Collection[VersionKey] = (),
) -> SchemaPlan:
    """Returns the plan for the subjects that *mapping* selects, and for those that they refer to.

    *refused*: copies that the target has refused to register. They are in the plan again, and their ids are reserved.
    Raises InvalidSettingError for an expression that takes too long.
    """
    wanted = selected_versions(source, mapping)
    conflicts: list[SchemaConflict] = []
    modes, closed = _open_contexts(source, target, mapping, conflicts)
    copied = [version for version in wanted.values() if version.subject.context not in closed]
    state = _TargetState(
        {},
        frozenset((mapping.copy_of(subject), number) for subject, number in wanted),
        {copy.key: copy for copy in (mapping.copied(version) for version in copied if version.is_deleted)},
    )
    for version in target.versions.values():
        state.add(version)
    ordered, circular = _in_order(wanted)
    blocked = set(circular)
    conflicts += [_missing_reference(wanted[key], "itself, over other versions") for key in circular]
    writes: list[SchemaStep] = []
    deletes: list[DeleteVersion] = []
    for key in ordered:
        version = wanted[key]
        if version.subject.context in closed:
            continue
        conflict = _conflict_of(version, wanted, blocked, mapping, state)
        if conflict is not None:
            conflicts.append(conflict)
            blocked.add(key)
        elif any((reference.subject, reference.version) in blocked for reference in version.references):
            blocked.add(key)
        else:
            _copy_version(mapping.copied(version), state, writes, deletes)
    registered = sum(isinstance(step, RegisterVersion) for step in writes)
    missing = len(blocked) + sum(subject.context in closed for subject, _ in wanted)
    subjects = {subject for subject, _ in wanted}
    writes += [
        *_possible(deletes, state, mapping, conflicts),
        *_reservations(source, state, mapping, closed, refused),
    ]
    return SchemaPlan(
        steps=tuple(_with_settings(modes, writes, source, target, mapping, subjects, closed)),
        conflicts=tuple(conflicts),
        subjects=len(subjects),
        versions=len(wanted),
        missing=registered + missing,
        missing_after=missing,
    )


def selected_versions(source: RegistryContents, mapping: SubjectMapping) -> dict[VersionKey, SchemaVersion]:
    """Returns the versions of the selected subjects, and whole subjects to which any of these refer.

    Left out is a deleted version that refers to a version that is gone: no registry can resolve it any more.
    """
    by_subject: dict[SubjectName, list[SchemaVersion]] = {}
    for version in source.versions.values():
        by_subject.setdefault(version.subject, []).append(version)
    wanted: dict[VersionKey, SchemaVersion] = {}
    waiting = sorted(mapping.selected(by_subject))
    seen = set(waiting)
    while waiting:
        for version in by_subject.get(waiting.pop(), ()):
            wanted[version.key] = version
            for subject in (reference.subject for reference in version.references):
                if subject not in seen and subject.context in mapping.contexts:
                    seen.add(subject)
                    waiting.append(subject)
    while unresolvable := [version.key for version in wanted.values() if _is_remnant(version, wanted)]:
        for key in unresolvable:
            del wanted[key]
    return wanted


def _is_remnant(version: SchemaVersion, wanted: Mapping[VersionKey, SchemaVersion]) -> bool:
    return version.is_deleted and any(
        (reference.subject, reference.version) not in wanted for reference in version.references
    )


def _open_contexts(
    source: RegistryContents,
    target: RegistryContents,
    mapping: SubjectMapping,
    conflicts: list[SchemaConflict],
) -> tuple[list[SchemaStep], frozenset[str]]:
    """Returns the steps that open target contexts for imports, and the source contexts that cannot be copied."""
    steps: list[SchemaStep] = []
    closed = set()
    used_by_source = {subject.context for subject, _ in source.versions}
    used = {subject.context for subject, _ in target.versions}
    for context, copy in mapping.contexts.items():
        mode = target.modes.get(copy, READ_WRITE)
        source_is_copy = source.modes.get(context) == IMPORT
        has_schemas = context in used_by_source or copy in used
        if mode == IMPORT and (has_schemas or not source_is_copy):
            continue
        kind, message = None, ""
        if mode == IMPORT:
            kind = SchemaConflictKind.BOTH_ARE_COPIES
            message = (
                f"Context {context} of the source and context {copy} of the target have mode IMPORT and no schemas, so neither issues ids. Two flows may "
                f"have begun to copy into each other. Copy each into a context of its own ({CONTEXTS_HINT}), and set the mode of the context in which "
                "clients register schemas to READWRITE."
            )
        elif copy in used or mode != READ_WRITE:
            kind = SchemaConflictKind.TARGET_ISSUES_IDS
            message = (
                f"Context {copy} of the target has {'schemas and ' if copy in used else ''}mode {mode}, so it may issue an id that the source issues, too. Copy "
                f"into a context of its own ({CONTEXTS_HINT}), or, if the target is to issue no ids, set its mode to IMPORT."
            )
        elif source_is_copy:
            kind = SchemaConflictKind.SOURCE_IS_COPY
            message = (
                f"Context {context} of the source has mode IMPORT, so it is a copy already, perhaps of this target. Copy another context "
                f"({CONTEXTS_HINT}), or set the mode of context {copy} of the target to IMPORT if it is to be a copy of the copy."
            )
        if kind is None:
            steps.append(SetContextMode(copy))
        else:
            closed.add(context)
            conflicts.append(SchemaConflict(kind=kind, subject=SubjectName(context, ""), message=message))
    return steps, frozenset(closed)


def _in_order(wanted: Mapping[VersionKey, SchemaVersion]) -> tuple[list[VersionKey], Collection[VersionKey]]:
    """Returns the order of registration, and the versions that refer to themselves over others."""
    circular: set[VersionKey] = set()
    while True:
        graph: TopologicalSorter[VersionKey] = TopologicalSorter()
        before: VersionKey | None = None
        for key in sorted(wanted.keys() - circular):
            needs = [(reference.subject, reference.version) for reference in wanted[key].references]
            if before is not None and before[0] == key[0]:
                needs.append(before)
            graph.add(key, *(need for need in needs if need in wanted and need not in circular))
            before = key
        try:
            return list(graph.static_order()), sorted(circular)
        except CycleError as error:
            circular.update(error.args[1])


def _conflict_of(
    version: SchemaVersion,
    wanted: Mapping[VersionKey, SchemaVersion],
    blocked: Collection[VersionKey],
    mapping: SubjectMapping,
    state: _TargetState,
) -> SchemaConflict | None:
    """Returns why *version* cannot be copied; None if it can, or if only a version that it refers to is blocked."""
    for reference in version.references:
        if (reference.subject, reference.version) not in wanted:
            what = f"version {reference.version} of {reference.subject.qualified}"
            return _missing_reference(version, f"{what}, which the source has not, or which is not copied")
    if any((reference.subject, reference.version) in blocked for reference in version.references):
        return None
    copy = mapping.copied(version)
    named = f"Version {version.version} of {version.subject.qualified} (id {version.schema_id})"
    present = state.versions.get(copy.key)
    if present is not None and (present.schema_id, present.content) != (copy.schema_id, copy.content):
        present_content = (
            f"id {present.schema_id}" if present.schema_id != copy.schema_id else "another schema"
        )
        return SchemaConflict(
            kind=SchemaConflictKind.VERSION_TAKEN,
            subject=version.subject,
            version=version.version,
            message=f"{named} cannot be copied: the target has {copy.subject.qualified} in that version with {present_content}. "
            "Delete that version from the target permanently, or copy with another subject prefix.",
        )
    other = state.by_id.get((copy.subject.context, copy.schema_id))
    if other is not None and other.content != copy.content:
        return SchemaConflict(
            kind=SchemaConflictKind.ID_TAKEN,
            subject=version.subject,
            version=version.version,
            message=f"{named} cannot be copied: on the target that id is another schema, version {other.version} of "
            f"{other.subject.qualified}. Delete it there permanently if no record needs it, or copy into another context.",
        )
    if _must_register(copy, present):
        for earlier in state.earlier_versions(copy):
            referrer = state.deletions_before(earlier)
            if isinstance(referrer, SchemaVersion):
                return SchemaConflict(
                    kind=SchemaConflictKind.STILL_REFERENCED,
                    subject=version.subject,
                    version=version.version,
                    message=f"{named} cannot be copied: the target has its schema as version {earlier[1]}, and "
                    f"{_refers(referrer, earlier)}.",
                )
    return None


def _must_register(copy: SchemaVersion, present: SchemaVersion | None) -> bool:
    return present is None or (present.is_deleted and not copy.is_deleted)


def _refers(referrer: SchemaVersion, key: VersionKey) -> str:
    is_direct = any((reference.subject, reference.version) == key for reference in referrer.references)
    return (
        f"version {referrer.version} of {referrer.subject.qualified} refers to it{'' if is_direct else ' over other versions'}, "
        "and is not deleted by MirrorFlow. Delete that one first"
    )


def _missing_reference(version: SchemaVersion, what: str) -> SchemaConflict:
    return SchemaConflict(
        kind=SchemaConflictKind.REFERENCE_MISSING,
        subject=version.subject,
        version=version.version,
        message=f"Version {version.version} of {version.subject.qualified} cannot be copied: it refers to {what}.",
    )


def _copy_version(
    copy: SchemaVersion, state: _TargetState, writes: list[SchemaStep], deletes: list[DeleteVersion]
) -> None:
    present = state.versions.get(copy.key)
    is_live = present is not None and not present.is_deleted
    if _must_register(copy, present):
        placeholder = state.reserved.pop((copy.subject.context, copy.schema_id), None)
        if placeholder is not None:
            del state.versions[placeholder.key]
            writes.append(DeleteVersion(*placeholder.key, permanently=True))
        # Registries take a schema that a subject has already for the same version, unless that one is deleted.
        for earlier in state.earlier_versions(copy):
            writes += _taken_out(earlier, state, deletes)
        writes.append(RegisterVersion(copy))
        is_live = True
    if copy.is_deleted and is_live:
        deletes.append(DeleteVersion(*copy.key))
    state.add(replace(copy, is_deleted=False) if copy.is_deleted and is_live else copy)


def _taken_out(key: VersionKey, state: _TargetState, deletes: list[DeleteVersion]) -> Iterator[DeleteVersion]:
    """Yields the deletion of *key* after those of what refers to it, none of which stays; *deletes* has them no more."""
    before = state.deletions_before(key)
    assert not isinstance(before, SchemaVersion)
    for each in (*before, key):
        delete = DeleteVersion(*each)
        if delete in deletes:
            deletes.remove(delete)
        state.delete(each)
        yield delete


def _possible(
    deletes: list[DeleteVersion],
    state: _TargetState,
    mapping: SubjectMapping,
    conflicts: list[SchemaConflict],
) -> Iterator[DeleteVersion]:
    """Yields *deletes* in reverse, without those that the target refuses because of versions that stay."""
    originals = {copy: context for context, copy in mapping.contexts.items()}
    for delete in reversed(deletes):
        key = delete.subject, delete.version
        before = state.deletions_before(key)
        if before == ():
            state.delete(key)
            yield delete
            continue
        referrer = before if isinstance(before, SchemaVersion) else state.versions[before[-1]]
        subject = SubjectName(
            originals[delete.subject.context], delete.subject.name.removeprefix(mapping.prefix)
        )
        conflicts.append(
            SchemaConflict(
                kind=SchemaConflictKind.STILL_REFERENCED,
                subject=subject,
                version=delete.version,
                message=f"Version {delete.version} of {delete.subject.qualified} cannot be deleted on the target: {_refers(referrer, key)}.",
            )
        )


def _reservations(
    source: RegistryContents,
    state: _TargetState,
    mapping: SubjectMapping,
    closed: Collection[str],
    refused: Collection[VersionKey],
) -> Iterator[SchemaStep]:
    """Yields steps that keep the target from issuing an id that the source has issued."""
    highest = source.highest_ids()
    for context, copy in mapping.contexts.items():
        wanted = highest.get(context, 0)
        if context in closed or not wanted:
            continue
        held = [
            schema_id
            for (other, schema_id), version in state.by_id.items()
            if other == copy and version.key not in refused
        ]
        reserved = {schema_id for other, schema_id in state.reserved if other == copy}
        if wanted > max([*held, *reserved], default=0):
            yield RegisterVersion(placeholder_of(copy, wanted))
            reserved_before = reserved
        else:
            reserved_before = reserved - {max([*held, *reserved])}
        for schema_id in sorted(reserved_before):
            yield DeleteVersion(*state.reserved[copy, schema_id].key, permanently=True)


def placeholder_of(context: str, schema_id: int) -> SchemaVersion:
    """Returns the version that reserves an id. Its schema is unlike any other, and its number grows with the ids."""
    schema = {
        "type": "record",
        "name": f"ReservedId{schema_id}",
        "namespace": "io.mirrorflow",
        "doc": "The source registry has issued this id; MirrorFlow keeps the target from issuing it again.",
        "fields": [],
    }
    return SchemaVersion(
        subject=SubjectName(context, RESERVED_SUBJECT),
        version=schema_id,
        schema_id=schema_id,
        text=json.dumps(schema),
        schema_type=AVRO,
    )


def _with_settings(
    modes: list[SchemaStep],
    writes: list[SchemaStep],
    source: RegistryContents,
    target: RegistryContents,
    mapping: SubjectMapping,
    subjects: Collection[SubjectName],
    closed: Collection[str],
) -> Iterator[SchemaStep]:
    """Yields all steps: modes that would refuse the *writes* first, then these, then settings and modes of the source."""
    written = {step.version.subject for step in writes if isinstance(step, RegisterVersion)}
    written |= {step.subject for step in writes if isinstance(step, DeleteVersion)}
    present_subjects = {subject for subject, _ in target.versions}
    scopes = sorted({*subjects, *(SubjectName(context, "") for context in mapping.contexts)})
    known = [
        (scope, mapping.copy_of(scope))
        for scope in scopes
        if scope.context not in closed
        and scope in source.settings_read
        # A subject that the target lacks has no settings there.
        and (mapping.copy_of(scope) in target.settings_read or mapping.copy_of(scope) not in present_subjects)
    ]
    yield from modes
    lasting: list[SchemaStep] = []
    for scope, copy in known:
        present = target.subject_modes.get(copy)
        # READWRITE would let the target issue ids; IMPORT is what it has from its context.
        mode = source.subject_modes.get(scope)
        mode = mode if mode in _READ_ONLY_MODES else None
        refuses = present not in {None, IMPORT}
        if refuses and (copy in written or mode is None):
            yield SetSubjectMode(copy, None)
            present = None
        if mode is not None and mode != present:
            lasting.append(SetSubjectMode(copy, mode))
    yield from writes
    for scope, copy in known:
        settings = source.compatibility.get(scope)
        if settings != target.compatibility.get(copy):
            yield SetCompatibility(copy, settings)
    yield from lasting
