"""What `${provider:path:key}` stands for on this host: environment, files, directories.

As KIP-297, KIP-421 and KIP-710: only providers named in `config.providers` exist, and each call of `resolve` reads
their sources anew, so that a rotated secret is seen by the next client that is built. What cannot be resolved stays as
it is written; `resolve_client` refuses that for the keys that connect and authenticate. Nothing here logs, and no error
carries a resolved value. What a provider reads is `secret_sources`'.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from mirrorflow_replicator.connect.references import Reference, substitute
from mirrorflow_replicator.connect.secret_sources import EnvironmentSource, FileSource, SecretSource
from mirrorflow_replicator.errors import InvalidSettingError, RefusedSettingError, UnresolvedReferenceError

PROVIDERS_KEY = "config.providers"
_JAVA_PACKAGE = "org.apache.kafka.common.config.provider."
_CONNECTION_KEYS = re.compile(r"bootstrap\.servers|security\.protocol|ssl\..*|sasl\..*")


class Resolver:
    """The providers that a set of properties declares. Raises RefusedSettingError for a class that we do not have."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        names = [name.strip() for name in properties.get(PROVIDERS_KEY, "").split(",") if name.strip()]
        self._providers = {name: _declared(name, properties) for name in names}

    def resolve(self, properties: Mapping[str, str]) -> dict[str, str]:
        """*properties* with their references replaced; what cannot be resolved stays as written."""
        return {key: substitute(value, self._found) for key, value in properties.items()}

    def resolve_value(self, value: str) -> str:
        """As `resolve`, for one value."""
        return substitute(value, self._found)

    def resolve_client(self, properties: Mapping[str, str]) -> dict[str, str]:
        """As `resolve`, for the properties of a client that is about to connect.

        Raises UnresolvedReferenceError where a key that connects or authenticates would keep its reference.
        """
        return {
            key: substitute(value, partial(self._required, key))
            if _CONNECTION_KEYS.fullmatch(key)
            else self.resolve_value(value)
            for key, value in properties.items()
        }

    def _required(self, key: str, reference: Reference) -> str:
        try:
            return self._lookup(reference)
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
        return provider.lookup(reference)


def _declared(name: str, properties: Mapping[str, str]) -> SecretSource:
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
            try:
                return EnvironmentSource(re.compile(properties.get(pattern_key, ".*")))
            except re.error as error:
                raise InvalidSettingError(
                    key=pattern_key, problem=f"it is no regular expression: {error}"
                ) from error
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
    paths = [Path(part.strip()) for part in written.split(",") if part.strip()]
    for path in paths:
        if not path.is_absolute() or not path.exists():
            raise InvalidSettingError(
                key=key,
                problem=f"{path} is not an absolute path that exists",
                action="name existing absolute paths",
            )
    return tuple(path.resolve() for path in paths)
