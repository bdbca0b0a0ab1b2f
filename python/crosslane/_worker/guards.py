"""What a translated function relies on: names that still stand for the same objects."""

from __future__ import annotations

from types import CellType, FunctionType, ModuleType
from typing import Any

from crosslane import _guest

#: Where something is looked up.
Place = dict[str, Any] | ModuleType | CellType | FunctionType | _guest.Elements
#: A place, a name there, and the object that was there. The object of a name that was not there is
#: `ABSENT`. In a function, it is the function's code. In a dict, set or list with unchanged elements, it
#: is True.
Guard = tuple[Place, str, Any]
ABSENT = object()


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
    try:
        return place.cell_contents
    except ValueError:
        return ABSENT
