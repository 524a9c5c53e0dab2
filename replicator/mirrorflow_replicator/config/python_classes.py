"""Checks and imports a user's own class, written `python:package.module:Class`."""

import importlib
import re

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError

PYTHON = "python:"
_PYTHON_CLASS = re.compile(r"python:([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


def python_class(key: str, written: str, *, built_in: str) -> str:
    """Returns *written* if it names a Python class.

    Raises RefusedSettingError for a Java class, InvalidSettingError for a malformed name.
    """
    if not written.startswith(PYTHON):
        raise RefusedSettingError(
            key=key, why=f"{written} is a Java class; use {built_in}, or python:package.module:Class"
        )
    if not _PYTHON_CLASS.fullmatch(written):
        raise InvalidSettingError(
            key=key, problem=f"{written!r} does not name a class", action="write python:package.module:Class"
        )
    return written


def load_python_class(key: str, written: str) -> type:
    """Returns the class that `python:package.module:Class` names.

    Raises InvalidSettingError if it cannot be imported.
    """
    found = _PYTHON_CLASS.fullmatch(written)
    if found is None:
        raise InvalidSettingError(
            key=key, problem=f"{written!r} does not name a class", action="write python:package.module:Class"
        )
    module_name, class_name = found.groups()
    try:
        loaded = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise InvalidSettingError(
            key=key,
            problem=f"{written} cannot be imported: {error}",
            action="install it where the connector runs",
        ) from error
    if not isinstance(loaded, type):
        raise InvalidSettingError(key=key, problem=f"{written} is not a class", action="name a class")
    return loaded
