"""Light dataclasses behave like those of the standard decorator, but compile only one method per class."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, replace
from typing import Any

import pytest

from mirrorflow_core.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A class with each kind of field."""

    name: str
    count: int = 1
    labels: list[str] = field(default_factory=list)
    cached: str = field(default="", compare=False)
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived(Base):
    """A class with a base, and a check after its creation."""

    limit: int = 10

    def __post_init__(self) -> None:
        if self.count > self.limit:
            raise ValueError(self.count)


@dataclass(frozen=True, slots=True)
class Positional:
    """A class whose fields may be given by position, with methods of its own."""

    first: int
    second: int = 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Positional) and other.first == self.first

    def __hash__(self) -> int:
        return self.first


@dataclass(frozen=True, slots=True)
class Empty:
    """A class without fields."""


def standard(cls: type) -> Any:
    """Returns the class that the standard decorator creates from the same fields."""
    names = {item.name: item.type for item in dataclasses.fields(cls)}
    defaults = {
        item.name: field(
            default=item.default,
            default_factory=item.default_factory,
            compare=item.compare,
            repr=item.repr,
        )
        for item in dataclasses.fields(cls)
        if item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
    }
    fields = [(name, kind, *((defaults[name],) if name in defaults else ())) for name, kind in names.items()]
    return dataclasses.make_dataclass(cls.__name__, fields, frozen=True, slots=True, kw_only=True)


@pytest.mark.parametrize("values", [{"name": "a"}, {"name": "b", "count": 3, "labels": ["x"], "secret": "s"}])
def test_fields_defaults_and_text_are_those_of_the_standard_decorator(values: dict[str, Any]):
    light, usual = Base(**values), standard(Base)(**values)

    assert dataclasses.asdict(usual) == dataclasses.asdict(light)
    assert repr(usual) == repr(light)


def test_equality_and_hash_use_the_compared_fields_of_one_class():
    positional = Positional(1)

    assert Base(name="a", cached="x") == Base(name="a", cached="y")
    assert Base(name="a") != Base(name="b")
    assert Base(name="a") != Derived(name="a")
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert positional == Positional(1, 3)
    assert hash(positional) == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(Base(name="a"))


def test_default_lists_are_not_shared():
    first, second = Base(name="a"), Base(name="b")

    first.labels.append("x")

    assert second.labels == []


def test_fields_can_be_neither_changed_nor_deleted():
    value: Any = Derived(name="a")

    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'count'"):
        value.count = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'count'"):
        del value.count
    assert not hasattr(value, "__dict__")


def test_replace_copy_and_pickle_keep_all_fields():
    value = Derived(name="a", count=3, labels=["x"], cached="y", secret="s")

    assert replace(value, count=4) == Derived(name="a", count=4, labels=["x"], secret="s")
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert dataclasses.asdict(again) == dataclasses.asdict(value)
        assert type(again) is Derived


def test_checks_after_creation_also_run_in_replace():
    with pytest.raises(ValueError, match="11"):
        Derived(name="a", count=11)
    with pytest.raises(ValueError, match="12"):
        replace(Derived(name="a"), count=12)


def test_wrong_arguments_are_refused_with_the_name_of_the_class():
    untyped: Any = Base

    with pytest.raises(
        TypeError, match=r"Base\.__init__\(\) missing 1 required keyword-only argument: 'name'"
    ):
        untyped()
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        untyped("a")


def test_a_value_for_a_field_that_is_no_parameter_is_refused():
    with pytest.raises(TypeError, match="every field must be a parameter"):

        @dataclass(frozen=True, slots=True, kw_only=True)
        class Computed:
            """A class with a field that only its own code sets."""

            total: int = field(init=False, default=0)


def test_unsupported_options_fall_back_to_the_standard_decorator():
    @dataclass(slots=True, kw_only=True)
    class Changeable:
        """A class whose fields change."""

        count: int = 0

    @dataclass(frozen=True, slots=True, kw_only=True, order=True)
    class Ordered:
        """A class with an order."""

        count: int

    value = Changeable()
    value.count = 3

    assert value == Changeable(count=3)
    assert Ordered(count=1) < Ordered(count=2)


def test_only_the_constructor_is_compiled_for_each_class():
    own = {
        name
        for name in ("__init__", "__repr__", "__setattr__", "__getstate__")
        if vars(Base)[name] is not vars(Derived)[name]
    }

    assert own == {"__init__"}
