"""Resolves `${provider:path:key}` references on this host, and hides plain-text secrets where settings are shown.

As in KIP-297, KIP-421 and KIP-710, only providers named in `config.providers` exist. Each call of `resolve` reads their sources
again, so that the next client gets a rotated secret; `mirrorflow_kafka.security.secret_rotation` detects the change. A reference that cannot be resolved stays as it is written;
`resolve_client` refuses that for the keys that connect and authenticate. Values of those keys lose one line end at the end,
which editors and `kubectl create secret --from-file` leave in files of passwords. `allowlist.pattern` (KIP-887) and
`allowed.paths` (KIP-993) limit what can be read. Nothing here logs, and no error contains a resolved value.

Java's placeholder for a secret is `[hidden]` (Password.toString). Connect uses it in validation only. Ours hides everywhere,
except where a distributed worker accepts configurations: clients write back what they read there.
"""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError, UnresolvedReferenceError
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_core.java.jaas import resolve_jaas
from mirrorflow_core.java.patterns import SettingPattern, compile_pattern
from mirrorflow_core.java.properties import Reference, parse_properties, read_list, substitute
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_replicator.config.clients import is_shared

# Java's limit is its heap; a secret or properties file larger than this means a wrong path (a device, a log).
SOURCE_SIZE_MAX_BYTES = 4 * 1024 * 1024
PROVIDERS_KEY = "config.providers"
_JAVA_PACKAGE = "org.apache.kafka.common.config.provider."
HIDDEN = "[hidden]"
_JAAS = re.compile(r"(?:^|\.)sasl\.jaas\.config$")
# By their last part, after any prefix: ssl.key.password, source.cluster.ssl.keystore.key, ....client.secret,
# a basic.auth.user.info.
_SECRET = re.compile(
    r"(?:^|\.)(?:password|passphrase|secret|token|credentials?|user\.info|ssl\.keystore\.key)$",
    re.IGNORECASE,
)
_TEXT = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)"""
_WELL_FORMED = re.compile(rf"\s*[\w.$]+\s+\w+(?:\s+[\w.]+\s*=\s*{_TEXT})*\s*;\s*", re.DOTALL)
# A secret option of a login module: password="...", clientSecret='...', or without quotes.
_OPTION = re.compile(
    rf"(\b\w*(?:password|passphrase|secret|token|privatekey|assertion)\w*\s*=\s*)({_TEXT})",
    re.IGNORECASE | re.DOTALL,
)
# The user and password of a URL, as of a schema registry or of a token endpoint.
_URL = re.compile(r"(?:^|\.)url$")
_USER_INFO = re.compile(r"(?<=//)[^/\s,]*@")


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    """EnvVarConfigProvider: `${env:NAME}`."""

    allowed: SettingPattern

    def lookup(self, reference: Reference) -> str:
        if reference.path:
            raise LookupError("variables of the environment have no path; write ${env:NAME}")
        if not self.allowed.matches(reference.key):
            raise LookupError("allowlist.pattern does not admit this variable")
        try:
            return os.environ[reference.key]
        except KeyError:
            raise LookupError("the environment has no such variable") from None


@dataclass(frozen=True, slots=True)
class FileSource:
    """FileConfigProvider (a key of a properties file) and DirectoryConfigProvider (a file of a directory)."""

    allowed: tuple[Path, ...] | None
    whole: bool

    def lookup(self, reference: Reference) -> str:
        if not reference.path:
            raise LookupError("the path is missing")
        if self.whole:
            if Path(reference.key).name != reference.key:
                raise LookupError("the key must be the plain name of a file")
            return self._read(Path(reference.path) / reference.key)
        text = self._read(Path(reference.path))
        try:
            return parse_properties(text)[reference.key]
        except InvalidSettingError:
            raise LookupError("the file is not a properties file") from None
        except KeyError:
            raise LookupError("the file has no such key") from None

    def _read(self, path: Path) -> str:
        # Compare real paths: a link or `..` out of the allowed paths would read any file of the pod.
        real = path.resolve()
        if self.allowed is not None and not any(real.is_relative_to(root) for root in self.allowed):
            raise LookupError("the path is outside of allowed.paths")
        try:
            with real.open("rb") as file:
                data = file.read(SOURCE_SIZE_MAX_BYTES + 1)
        except OSError as error:
            raise LookupError(f"the file cannot be read ({error.strerror})") from None
        if len(data) > SOURCE_SIZE_MAX_BYTES:
            raise LookupError(f"the file is larger than {SOURCE_SIZE_MAX_BYTES} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise LookupError("the file is not UTF-8 text") from None


class Resolver:
    """The providers that a set of properties declares. Raises RefusedSettingError for an unsupported class."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        names = read_list(properties.get(PROVIDERS_KEY, ""))
        self._providers = {name: _declared(name, properties) for name in names}

    def resolve(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Returns *properties* with references replaced; one that cannot be resolved stays as written."""
        return {key: substitute(value, self._found) for key, value in properties.items()}

    def resolve_value(self, value: str) -> str:
        """Resolves one value, as `resolve` does."""
        return substitute(value, self._found)

    def resolve_required(self, key: str, value: str) -> str:
        """Resolves the value of *key*. Raises UnresolvedReferenceError where a reference would stay."""
        return substitute(value, partial(self._required, key))

    def resolve_client(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Resolves the properties of a client that is about to connect, as `resolve` does.

        Raises UnresolvedReferenceError where a key that connects or authenticates would keep its reference.
        """
        return {key: self._for_client(key, value) for key, value in properties.items()}

    def _for_client(self, key: str, value: str) -> str:
        if key == JAAS:
            return resolve_jaas(value, partial(self._required, key))
        if is_shared(key):
            return self.resolve_required(key, value)
        return self.resolve_value(value)

    def _required(self, key: str, reference: Reference) -> str:
        try:
            value = self._lookup(reference)
            return value.removesuffix("\n").removesuffix("\r") if value.endswith("\n") else value
        except LookupError as error:
            problem = str(error.args[0])
            raise UnresolvedReferenceError(key=key, reference=reference.text, problem=problem) from None

    def _found(self, reference: Reference) -> str | None:
        try:
            return self._lookup(reference)
        except LookupError:
            return None

    def _lookup(self, reference: Reference) -> str:
        provider = self._providers.get(reference.provider)
        if provider is None:
            raise LookupError(f"{PROVIDERS_KEY} does not name {reference.provider!r}")
        try:
            return provider.lookup(reference)
        except (ValueError, RuntimeError):
            # A NUL or half of a surrogate pair in the name, or a loop of links.
            raise LookupError("the system accepts no such name") from None


def _declared(name: str, properties: Mapping[str, str]) -> EnvironmentSource | FileSource:
    prefix = f"{PROVIDERS_KEY}.{name}"
    class_key = f"{prefix}.class"
    written = properties.get(class_key, "").strip()
    match written.removeprefix(_JAVA_PACKAGE):
        case "":
            raise InvalidSettingError(
                key=class_key,
                problem=f"it is missing, but {PROVIDERS_KEY} names {name!r}",
                action="add the class",
            )
        case "EnvVarConfigProvider":
            pattern_key = f"{prefix}.param.allowlist.pattern"
            return EnvironmentSource(compile_pattern(pattern_key, properties.get(pattern_key, ".*")))
        case "FileConfigProvider":
            return FileSource(_allowed_paths(f"{prefix}.param.allowed.paths", properties), whole=False)
        case "DirectoryConfigProvider":
            return FileSource(_allowed_paths(f"{prefix}.param.allowed.paths", properties), whole=True)
        case _:
            raise RefusedSettingError(
                key=class_key,
                why=f"{written} is a Java class; use EnvVarConfigProvider, FileConfigProvider or DirectoryConfigProvider",
            )


def _allowed_paths(key: str, properties: Mapping[str, str]) -> tuple[Path, ...] | None:
    written = properties.get(key, "").strip()
    if not written:
        return None
    paths = [Path(part) for part in read_list(written)]
    for path in paths:
        if not path.is_absolute() or not path.exists():
            raise InvalidSettingError(
                key=key,
                problem=f"{path} is not an absolute path that exists",
                action="name existing absolute paths",
            )
    return tuple(path.resolve() for path in paths)


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns *properties* with HIDDEN for each secret in plain text."""
    return {key: shown_value(key, value) for key, value in properties.items()}


def shown_value(key: str, value: str) -> str:
    """Returns the value to show for one property, as in `shown`."""
    if _JAAS.search(key):
        # In a malformed value any part may be the password.
        is_clear = _WELL_FORMED.fullmatch(value) or _is_reference(value)
        return _OPTION.sub(_option, value) if is_clear else HIDDEN
    if _SECRET.search(key) and value and not _is_reference(value):
        return HIDDEN
    return _USER_INFO.sub(_user_info, value) if _URL.search(key) else value


def _is_reference(value: str) -> bool:
    """Whether the value consists of references only."""
    return bool(value.strip()) and not substitute(value, lambda _: "").strip()


def _user_info(match: re.Match[str]) -> str:
    has_secret = substitute(match[0], lambda _: "").strip(":@")
    return f"{HIDDEN}@" if has_secret else match[0]


def _option(match: re.Match[str]) -> str:
    name, written = match.groups()
    return match.group(0) if _is_reference(written.strip("\"'")) else f'{name}"{HIDDEN}"'
