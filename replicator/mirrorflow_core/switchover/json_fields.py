"""Reads dataclasses from JSON objects by the types of their fields. Errors are ValueErrors that name the field, and show no value."""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from mirrorflow_core.java.json_text import integer_field, text_field

_Value = TypeVar("_Value")
# Once for each class: a seal has thousands of objects.
_hints: Callable[[Any], Mapping[str, Any]] = cache(get_type_hints)


def decoded(kind: type[_Value], fields: dict[str, Any]) -> _Value:
    """Returns the dataclass *kind* whose fields are those of the JSON object *fields*. Raises ValueError.

    Strings may be absent (""), and whatever may be None. A value that is a dataclass already is taken as it is.
    """
    return kind(**{name: _value(hint, fields, name) for name, hint in _hints(kind).items()})


def _value(hint: Any, fields: dict[str, Any], name: str) -> Any:
    value = fields.get(name)
    if hint is int:
        return integer_field(fields, name)
    if hint is str:
        return text_field(fields, name)
    if isinstance(hint, UnionType):
        (present,) = (part for part in get_args(hint) if part is not NoneType)
        return None if value is None else _value(present, fields, name)
    if args := get_args(hint):  # tuple[X, ...]
        return tuple(decoded(args[0], item) for item in objects_field(fields, name))
    if issubclass(hint, Enum):
        return hint(text_field(fields, name))
    if isinstance(value, hint):
        return value
    if hint is bool:
        raise ValueError(f"{name} is not a boolean")
    return decoded(hint, object_field(fields, name))


def object_field(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the JSON object of field *name*. Raises ValueError."""
    value = fields.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not an object")  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    return value


def objects_field(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Returns the list of JSON objects of field *name*. Raises ValueError."""
    values = fields.get(name)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError(f"{name} is not a list of objects")
    return values


def by_partition(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the JSON objects of field `partitions`, sorted by topic and partition. Raises ValueError."""
    return sorted(
        objects_field(fields, "partitions"),
        key=lambda item: (text_field(item, "topic"), integer_field(item, "partition")),
    )
