"""Looks up and checks every Java key that we know: honoured, mapped, ignored or refused.

The tables are separate modules (`connector_keys`, `worker_keys`, `client_keys`). Each unknown key is warned of
by name, because a misspelt key that is silently dropped is the most common cause of "it does not replicate my
topic". `python -m mirrorflow_replicator.config.keys` prints docs/settings.md.

`read_properties` handles comments after values, which MM2's own README has and Java takes as part of the
value. Where the value would make no sense with it (a flag, a number, an address, a path), the comment is cut
off. Elsewhere (expressions, secrets, names) Java's reading stands. Both are warned of, by key and never by
value.
"""

import difflib
import fnmatch
import re
import sys
from collections import Counter
from collections.abc import Mapping

from mirrorflow_core.errors import RefusedSettingError
from mirrorflow_core.java.properties import property_pairs, read_list, trailing_comment
from mirrorflow_replicator.config.client_keys import CLIENT_KEYS
from mirrorflow_replicator.config.connector_keys import (
    CONNECTOR_KEYS,
    IGNORED_CONNECTOR_KEYS,
    REFUSED_CONNECTOR_KEYS,
    SYNONYMS,
)
from mirrorflow_replicator.config.key_rows import Key, Scope, Verdict
from mirrorflow_replicator.config.worker_keys import DRIVER_KEYS, REST_KEYS, WORKER_KEYS

KEYS: tuple[Key, ...] = (
    *CONNECTOR_KEYS,
    *REFUSED_CONNECTOR_KEYS,
    *IGNORED_CONNECTOR_KEYS,
    *WORKER_KEYS,
    *REST_KEYS,
    *DRIVER_KEYS,
    *CLIENT_KEYS,
)

WORKER_SCOPES: tuple[Scope, ...] = (Scope.WORKER, Scope.REST, Scope.CLIENT)
CONNECTOR_SCOPES: tuple[Scope, ...] = (Scope.CONNECTOR, Scope.CLIENT)
CLUSTER_SCOPES: tuple[Scope, ...] = (Scope.WORKER, Scope.CLIENT)
DRIVER_SCOPES: tuple[Scope, ...] = (Scope.DRIVER, Scope.CONNECTOR, Scope.WORKER, Scope.REST, Scope.CLIENT)

# Longest first, so that `source.consumer.` is not read as a key that begins with `source.`.
_CLIENT_PREFIXES = (
    *(
        f"{side}.{kind}."
        for side in ("source", "target")
        for kind in ("cluster", "consumer", "producer", "admin")
    ),
    *(f"{kind}.override." for kind in ("consumer", "producer", "admin")),
    "consumer.",
    "producer.",
    "admin.",
    "offset.storage.kafka.",
    "listeners.https.",
)
_EXACT = {(key.scope, key.name): key for key in KEYS if "*" not in key.name}
_PATTERNS = tuple(key for key in KEYS if "*" in key.name)
_TITLES = {
    Scope.CONNECTOR: "Connectors",
    Scope.WORKER: "The worker",
    Scope.REST: "HTTP",
    Scope.DRIVER: "Only in an mm2.properties",
    Scope.CLIENT: "Clients",
}


def find(name: str, scopes: tuple[Scope, ...]) -> Key | None:
    """Returns the row of *name* in the first of *scopes* that has it, also after removing client prefixes."""
    for scope in scopes:
        if (scope, name) in _EXACT:
            return _EXACT[scope, name]
    for scope in scopes:
        for key in _PATTERNS:
            if key.scope is scope and fnmatch.fnmatchcase(name, key.name):
                return key
    if Scope.CLIENT in scopes:
        for prefix in _CLIENT_PREFIXES:
            if name.startswith(prefix):
                return find(name.removeprefix(prefix), (Scope.CLIENT,))
    return None


def is_connector_key(name: str) -> bool:
    """Whether MM2 passes *name* from the top level of an mm2.properties to its connectors."""
    key = find(name, (Scope.CONNECTOR,))
    return (key is not None and key.top_level) or _is_security(name)


def canonical(
    properties: Mapping[str, str], warnings: list[str], *, prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Returns *properties* with misspellings and old names replaced; warns of each.

    The misspellings are those of MM2's README, the old names those from before KIP-629.
    """
    out = dict(properties)
    for name, value in properties.items():
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        proper = SYNONYMS.get(name.removeprefix(prefix))
        if proper is None:
            continue
        del out[name]
        if prefix + proper in properties:
            warnings.append(f"{name}: it has no effect, because {prefix + proper} is given too.")
        else:
            out[prefix + proper] = value
            warnings.append(f"{name}: read as {prefix + proper}, which is its name.")
    return out


def check(
    properties: Mapping[str, str], scopes: tuple[Scope, ...], warnings: list[str], *, prefix: str = ""
) -> None:
    """Warns of unknown and ineffective keys; *prefix* is the prefix of the keys in the user's file.

    Raises RefusedSettingError for a key that only a Java process can follow.
    """
    ineffective = []
    for name, value in properties.items():
        key = find(name, scopes)
        if key is None:
            warnings.append(f"{prefix}{name}: unknown, it has no effect{_suggestion(name, scopes)}")
        elif key.verdict is Verdict.REFUSED and not key.accepts(value):
            if Scope.DRIVER in scopes and key.scope is Scope.REST:
                warnings.append(f"{prefix}{name}: it has no effect in mm2 mode, as in Java.")
            elif Scope.DRIVER in scopes and not key.top_level:
                warnings.append(f"{prefix}{name}: it has no effect at the top level, as in MM2.")
            else:
                raise RefusedSettingError(key=prefix + name, why=key.note)
        elif (
            (key.verdict is Verdict.IGNORED and key.warns)
            or _lacks_what_it_needs(key, properties, scopes)
            or _is_of_no_transform(name, properties)
        ):
            ineffective.append(prefix + name)
    if ineffective:
        warnings.append(f"Without effect here (docs/settings.md says why): {', '.join(sorted(ineffective))}.")


def document() -> str:
    """Returns docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Every setting of MirrorMaker 2, Kafka Connect and Kafka's clients that MirrorFlow knows, and what becomes of it.",
        "Generated by `python -m mirrorflow_replicator.config.keys`; a test holds it to the code.",
        "",
        "- **honoured**: it does what it does in Java.",
        "- **mapped**: its purpose is served in another way, described in the note.",
        "- **ignored**: it has no effect, because nothing here corresponds to it.",
        "- **refused**: the process does not start, because it would copy something else than was asked.",
        "",
        "Any other key is warned of by name when the process starts, and has no effect.",
        "",
        "These spellings are read too, with a warning: "
        + ", ".join(f"`{slip}` for `{proper}`" for slip, proper in SYNONYMS.items())
        + ".",
    ]
    for scope, title in _TITLES.items():
        lines += ["", f"## {title}", "", scope.value, "", "| key | verdict | note |", "|---|---|---|"]
        lines += [f"| `{key.name}` | {key.outcome} | {key.note} |" for key in KEYS if key.scope is scope]
    return "\n".join(lines) + "\n"


def _lacks_what_it_needs(key: Key, properties: Mapping[str, str], scopes: tuple[Scope, ...]) -> bool:
    """Whether *key* has no effect without another one; a cluster of an mm2.properties always has groups."""
    return (
        bool(key.needs)
        and scopes != CLUSTER_SCOPES
        and properties.get(key.needs, "").strip().lower() != "true"
    )


def _is_of_no_transform(name: str, properties: Mapping[str, str]) -> bool:
    """Whether *name* configures a transformation or predicate that is not listed and so has no effect.

    Java ignores it too.
    """
    family, _, rest = name.partition(".")
    if family not in {"transforms", "predicates"} or not rest:
        return False
    return rest.partition(".")[0] not in read_list(properties.get(family, ""))


def _is_security(name: str) -> bool:
    return name == "security.protocol" or name.startswith(("ssl.", "sasl."))


def _suggestion(name: str, scopes: tuple[Scope, ...]) -> str:
    names = [key.name for key in KEYS if key.scope in scopes and "*" not in key.name]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
    return f"; did you mean {close[0]}?" if close else "."


if __name__ == "__main__":
    sys.stdout.write(document())


# Lists of expressions, secrets, PEM text, and names that the user chooses.
_FREE_TEXT = re.compile(
    r"(.*\.)?(topics|groups|topics\.exclude|groups\.exclude|config\.properties\.exclude"
    r"|jaas\.config|password|secret|certificates|certificate\.chain|keystore\.key|scope|client\.id|client\.rack|name)"
)


def read_properties(text: str, warnings: list[str]) -> dict[str, str]:
    """Returns the pairs of *text*, `without_comments`; warns of duplicate keys.

    Raises InvalidSettingError.
    """
    pairs = list(property_pairs(text))
    counts = Counter(key for key, _ in pairs)
    warnings += [
        f"{key} is there twice; the last line counts, as in Java."
        for key, count in counts.items()
        if count > 1
    ]
    return without_comments(dict(pairs), warnings)


def without_comments(properties: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """Returns *properties* without comments after values, where they can only be comments; warns of each."""
    return {key: _value(key, value, warnings) for key, value in properties.items()}


def _value(key: str, value: str, warnings: list[str]) -> str:
    shorter = trailing_comment(value)
    if shorter is None:
        return value
    if _FREE_TEXT.fullmatch(key):
        warnings.append(
            f"{key}: what looks like a comment behind the value is part of it, as in Java; "
            "write comments on lines of their own."
        )
        return value
    warnings.append(
        f"{key}: the comment behind the value was left out; Java would take it as part of the value. "
        "Write comments on lines of their own."
    )
    return shorter
