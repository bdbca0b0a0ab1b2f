"""What a translated function relies on: names that still stand for the same objects."""

from __future__ import annotations

import builtins
from types import CellType, FunctionType, ModuleType
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
