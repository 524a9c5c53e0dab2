"""`dataclass` for frozen classes with slots, defined in a sixth of the time.

The standard decorator compiles six methods for each class, which takes half a millisecond, and the processes of a flow import
some 200 such classes before the first record. Here only `__init__` is compiled, and the other methods are shared. Classes behave
as the standard decorator's do (fields, `replace`, equality, hash, repr, pickle, `__post_init__`), but a field must be a
parameter of `__init__`, and bases that are dataclasses must be defined here, too. Other combinations of options are left to the
standard decorator, so that a module imports one `dataclass`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

_FROZEN_WITH_SLOTS: Final = {"frozen": True, "slots": True}


def _light(cls: type, *, kw_only: bool) -> type:
    """Returns *cls* with slots and methods."""
    own = dict(vars(cls))
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    fields = dataclasses.fields(cls)
    compared = [field.name for field in fields if field.compare]
    methods = {
        "__init__": _init(cls, fields),
        "__repr__": _repr,
        "__setattr__": _refuse_assignment,
        "__delattr__": _refuse_deletion,
        "__getstate__": _state,
        "__setstate__": _set_state,
        **_comparison(compared),
    }
    for name, method in methods.items():
        if own.get(name) is None:
            setattr(cls, name, method)
    return cls


def _init(cls: type, fields: tuple[Field[Any], ...]) -> Callable[..., None]:
    """Compiles `__init__`; it sets slots by their descriptors, because assignments are refused."""
    known: dict[str, object] = {"_missing": MISSING}
    positional: list[str] = []
    keywords: list[str] = []
    lines: list[str] = []
    for field in fields:
        name, value = field.name, field.name
        if not field.init:
            raise TypeError(f"{cls.__qualname__}.{name}: every field must be a parameter.")
        parameter = name
        if field.default is not MISSING:
            known[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not MISSING:
            known[f"_make_{name}"] = field.default_factory
            parameter, value = f"{name}=_missing", f"_make_{name}() if {name} is _missing else {name}"
        (keywords if field.kw_only else positional).append(parameter)
        known[f"_set_{name}"] = getattr(cls, name).__set__
        lines.append(f"_set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ["self", *positional, *(["*", *keywords] if keywords else [])]
    body = "\n    ".join(lines or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):\n    {body}", known)  # noqa: S102  as the standard decorator does
    init: Any = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init  # type: ignore[no-any-return]


def _comparison(names: list[str]) -> dict[str, Callable[..., object]]:
    """Returns `__eq__` and `__hash__` over the fields *names*."""
    values: Callable[[object], object] = attrgetter(*names) if names else lambda _: ()

    def is_equal(self: object, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def hashed(self: object) -> int:
        return hash(values(self))

    return {"__eq__": is_equal, "__hash__": hashed}


def _repr(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _refuse_assignment(_self: object, name: str, _value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414  type checkers know this one
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """As the standard decorator; light for frozen classes with slots, with or without kw_only."""
        if cls is not None:
            return dataclasses.dataclass(cls)
        kw_only = options.pop("kw_only", False)
        if options == _FROZEN_WITH_SLOTS:
            return lambda given: _light(given, kw_only=kw_only)
        return dataclasses.dataclass(kw_only=kw_only, **options)
