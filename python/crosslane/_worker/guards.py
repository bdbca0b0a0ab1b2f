"""What a translated function relies on: names that still stand for the same objects."""

from __future__ import annotations

import builtins
import dataclasses
from types import CellType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from crosslane import _guest

ABSENT = object()


class Holder(NamedTuple):
    """An object or a class with attributes that nothing computes."""

    object: Any
    #: The class of the object.
    class_: type
    #: What the class has under the name of the attribute.
    of_class: Any

    @classmethod
    def of(cls, object: Any, name: str) -> Holder | None:
        """None if the object does not have such an attribute itself."""
        class_ = type(object)
        if class_ is type:
            value = vars(object).get(name, ABSENT)
            computed = hasattr(type(value), "__get__") and type(value) is not FunctionType
            is_own = value is not ABSENT and not computed and not name.startswith("__")
            return cls(object, class_, ABSENT) if is_own else None
        of_class = _of_class(class_, name)
        is_plain = class_.__getattribute__ is builtins.object.__getattribute__
        # A property would come before the object's own attribute.
        if not is_plain or hasattr(type(of_class), "__set__") or name not in getattr(object, "__dict__", ()):
            return None
        return cls(object, class_, of_class)

    def found(self, name: str) -> Any:
        """What the attribute is now."""
        if type(self.object) is not self.class_:
            return ABSENT
        if self.class_ is not type and _of_class(self.class_, name) is not self.of_class:
            return ABSENT
        return vars(self.object).get(name, ABSENT)


def _of_class(class_: type, name: str) -> Any:
    return next((vars(one)[name] for one in class_.__mro__ if name in vars(one)), ABSENT)


#: What a class has under these names decides how its objects are made, and how their attributes are read.
MAKES_OBJECTS = ("__init__", "__new__", "__post_init__", "__setattr__", "__getattribute__", "__getattr__")


def record_fields(class_: type) -> dict[str, Any]:
    """The fields that a class takes, with their defaults, if its objects are nothing but their fields:
    a dataclass or a NamedTuple without methods that make objects. `ABSENT` is no default. Nothing for
    other classes.
    """
    own = vars(class_)
    if type(class_) is type and class_.__bases__ == (tuple,) and "_field_defaults" in own:
        return {name: own["_field_defaults"].get(name, ABSENT) for name in own["_fields"]}
    if type(class_) is not type or class_.__bases__ != (object,) or "__dataclass_fields__" not in own:
        return {}
    made = own.get("__init__")
    # `dataclass` makes this method, and `__setattr__` of a frozen class, from a text.
    if type(made) is not FunctionType or made.__code__.co_filename != "<string>":
        return {}
    usual = {"__init__", "__setattr__"} if own["__dataclass_params__"].frozen else {"__init__"}
    if any(name in own for name in MAKES_OBJECTS if name not in usual):
        return {}
    fields = dataclasses.fields(class_)
    names = tuple(one.name for one in fields)
    if names != made.__code__.co_varnames[1 : made.__code__.co_argcount]:
        return {}
    if any(hasattr(type(own.get(name)), "__set__") and not _is_slot(own[name]) for name in names):
        return {}
    missing = dataclasses.MISSING
    if any(one.default_factory is not missing for one in fields):
        return {}
    return {one.name: ABSENT if one.default is missing else one.default for one in fields}


def _is_slot(of_class: Any) -> bool:
    return type(of_class) is MemberDescriptorType


#: Where something is looked up.
Place = dict[str, Any] | ModuleType | CellType | FunctionType | _guest.Elements | Holder
#: A place, a name there, and the object that was there. The object of a name that was not there is
#: `ABSENT`. In a function, it is the function's code. In a dict, set or list with unchanged elements, it
#: is True.
Guard = tuple[Place, str, Any]


def hold(guards: list[Guard]) -> bool:
    """Whether all names still stand for the same objects."""
    return all(found(place, name) is value for place, name, value in guards)


def found(place: Place, name: str) -> Any:
    """What is found under a name now."""
    if isinstance(place, dict):
        return place.get(name, ABSENT)
    if isinstance(place, ModuleType):
        # Another class could give it other attributes.
        return vars(place).get(name, ABSENT) if type(place) is ModuleType else ABSENT
    if isinstance(place, FunctionType):
        return place.__code__
    if isinstance(place, _guest.Elements):
        return place.are_unchanged()
    if isinstance(place, Holder):
        return place.found(name)
    try:
        return place.cell_contents
    except ValueError:
        return ABSENT
