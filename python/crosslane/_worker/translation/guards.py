"""What a translated function relies on: names that still stand for the same objects.

Nothing here runs code of users, such as properties and metaclasses: a look at a class is a look into the
dicts of its bases.
"""

from __future__ import annotations

import collections
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from crosslane import _guest

ABSENT = object()
#: Constants, which compute nothing when they are read from a class.
_PLAIN = (type(None), bool, int, float, str, bytes, tuple, frozenset, list, dict, set)


class Holder(NamedTuple):
    """An object, or a plain class, with attributes that nothing computes."""

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
            is_own = type(value) in _PLAIN or type(value) is FunctionType or _is_time(value)
            return cls(object, class_, ABSENT) if is_own and not name.startswith("__") else None
        if type(class_) is not type:
            return None
        of_class = _of_class(class_, name)
        # A property would come before the object's own attribute.
        is_plain = of_class is ABSENT or type(of_class) in _PLAIN or type(of_class) is FunctionType
        holder = cls(object, class_, of_class)
        return holder if is_plain and holder.found(name) is not ABSENT else None

    def found(self, name: str) -> Any:
        """What the attribute is now."""
        if type(self.object) is not self.class_:
            return ABSENT
        if self.class_ is type:
            return vars(self.object).get(name, ABSENT)
        if _of_class(self.class_, name) is not self.of_class:
            return ABSENT
        if _of_class(self.class_, "__getattribute__") is not object.__getattribute__:
            return ABSENT
        own = _of_class(self.class_, "__dict__")
        # Such an object has no dict, or computes it.
        if type(own) is not GetSetDescriptorType:
            return ABSENT
        return own.__get__(self.object).get(name, ABSENT)


def _of_class(class_: type, name: str) -> Any:
    """What a class whose metaclass is `type` has under a name, without a call of it."""
    return next((vars(one)[name] for one in class_.__mro__ if name in vars(one)), ABSENT)


def _is_time(value: Any) -> bool:
    return type(value).__module__ == "datetime"


#: What a class has under these names decides how its objects are made, and how their attributes are read.
_MAKES_OBJECTS = ("__init__", "__new__", "__post_init__", "__setattr__", "__getattribute__", "__getattr__")
_Field = type(vars(collections.namedtuple("_", "a"))["a"])


class Record(NamedTuple):
    """A class whose objects are nothing but their fields."""

    #: The fields that it takes, with their defaults. `ABSENT` is no default.
    fields: dict[str, Any]
    guards: list[Guard]

    @classmethod
    def of(cls, class_: type) -> Record | None:
        """None for a class that is more than a dataclass or a NamedTuple."""
        if type(class_) is not type:
            return None
        own = vars(class_)
        if class_.__bases__ == (tuple,) and type(own.get("_fields")) is tuple:
            names, make, kinds = own["_fields"], "__new__", (_Field,)
        elif class_.__bases__ == (object,) and "__dataclass_fields__" in own:
            names = tuple(own["__dataclass_fields__"])
            make, kinds = "__init__", (MemberDescriptorType, *_PLAIN)
        else:
            return None
        made = own.get(make)
        if type(made) is staticmethod:
            made = made.__func__
        # `dataclass` and `namedtuple` make this method from a text.
        if type(made) is not FunctionType or made.__code__.co_filename != "<string>":
            return None
        if made.__code__.co_varnames[1 : made.__code__.co_argcount] != names or made.__kwdefaults__:
            return None
        is_frozen = make == "__init__" and own["__dataclass_params__"].frozen
        usual = {make, "__setattr__"} if is_frozen else {make}
        if any(name in own for name in _MAKES_OBJECTS if name not in usual):
            return None
        if any(name in own and type(own[name]) not in kinds for name in names):
            return None
        defaults = made.__defaults__ or ()
        if any(type(one).__name__ == "_HAS_DEFAULT_FACTORY_CLASS" for one in defaults):
            return None
        absent = [ABSENT] * (len(names) - len(defaults))
        holder = Holder(class_, type, ABSENT)
        guards: list[Guard] = [(holder, name, own.get(name, ABSENT)) for name in (*_MAKES_OBJECTS, *names)]
        guards += [(made, "", made.__code__), (made, "defaults", made.__defaults__)]
        return cls(dict(zip(names, [*absent, *defaults])), guards)


#: Where something is looked up.
Place = dict[str, Any] | ModuleType | CellType | FunctionType | _guest.Elements | Holder
#: A place, a name there, and the object that was there. The object of a name that was not there is
#: `ABSENT`. In a function, it is the function's code, or its defaults. In a dict, set or list with
#: unchanged elements, it is True.
Guard = tuple[Place, str, Any]


def hold(guards: list[Guard]) -> bool:
    """Whether all names still stand for the same objects. Each batch waits for this."""
    try:
        for place, name, value in guards:
            if found(place, name) is not value:
                return False
    except Exception:
        return False
    return True


def found(place: Place, name: str) -> Any:
    """What is found under a name now."""
    kind = type(place)
    if kind is FunctionType:
        return place.__defaults__ if name else place.__code__
    if kind is dict:
        return place.get(name, ABSENT)
    if kind is _guest.Elements:
        return place.are_unchanged()
    if kind is Holder:
        return place.found(name)
    if kind is CellType:
        try:
            return place.cell_contents
        except ValueError:
            return ABSENT
    # A module. Another class could give it other attributes.
    return vars(place).get(name, ABSENT) if kind is ModuleType else ABSENT
