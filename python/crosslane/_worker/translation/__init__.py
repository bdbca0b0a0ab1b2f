"""Functions of rows, written down for the guest's native part, which evaluates them by columns.

A lane checks before each batch that all names still stand for the same objects (`guards`). A row that
leaves the program is called (`left` says what such a row may do).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from crosslane import _guest
from crosslane._worker import inlining
from crosslane._worker.translation import guards
from crosslane._worker.translation.translator import Counter, Translation, Translator, Untranslatable

#: What was translated in the zygote, by the function's code: the function, its number of parameters
#: and the result. The lanes of a zygote find it there.
_made: WeakKeyDictionary[CodeType, tuple[FunctionType, int, Translation | Untranslatable]] = (
    WeakKeyDictionary()
)


def translate(function: Any, count: int, sources: inlining.Sources | None = None) -> Translation:
    """A function of ``count`` parameters, as the native part reads it.

    Raises:
        Untranslatable: if it does something that the native part does not know.
    """
    if type(function) is not FunctionType:
        raise Untranslatable("it is no plain function", 0)
    known, known_count, made = _made.get(function.__code__, (None, 0, None))
    if known is function and known_count == count and made is not None:
        if isinstance(made, Untranslatable):
            raise made
        return made
    try:
        return _translated(function, count, {} if sources is None else sources)
    except Untranslatable:
        raise
    except (Exception, SystemExit) as error:
        # Such as RecursionError: a function that cannot be translated can still be called.
        raise Untranslatable(f"its translation ended with {type(error).__name__}", 0) from error


def prepare(functions: Iterable[tuple[Any, int]], sources: inlining.Sources) -> None:
    """Translates functions in the zygote. Reads each file once."""
    for function, count in functions:
        made: Translation | Untranslatable
        try:
            made = translate(function, count, sources)
        except Untranslatable as error:
            made = error
        if type(function) is FunctionType:
            _made[function.__code__] = function, count, made


def _translated(function: FunctionType, count: int, sources: inlining.Sources) -> Translation:
    translator = Translator(function, sources, [], Counter())
    if count != function.__code__.co_argcount:
        raise Untranslatable("it has parameters with defaults that no column is passed for", 0)
    text = json.dumps(translator.source())
    unique = {(id(place), name): (place, name, value) for place, name, value in translator.guards}
    return text, list(unique.values())


#: What a lane needs: the function as JSON, and whether it still means the same.
Usable = tuple[str, Callable[[], bool]]


def of(declared: Any, count: int) -> Usable | None:
    """The translation of a declared function; None if the function must be called."""
    if _unusual(declared):
        return None
    try:
        text, names = translate(declared.inner or declared.callee(), count)
    except Untranslatable:
        return None
    return text, lambda: not inlining.is_watched() and guards.hold(names)


def _unusual(declared: Any) -> str | None:
    """What a declaration has that only calls know; None if it has nothing like that."""
    if declared.inner is None and declared.kind != "row":
        return "it is a function of columns already"
    if declared.inner is None and not declared.inline:
        return "inline=False"
    if declared.memory_limit is not None:
        return "it has a memory_limit, which counts what a call takes"
    if declared.variadic:
        return "it takes any number of arguments"
    if any(shape is not None for shape in (*declared.shapes, *_parts(declared.result_shape))):
        return "its types have classes of their own"
    return None


def _parts(shape: Any) -> list[Any]:
    """The shapes of a result that matter: an object is read by its attributes, whatever its class."""
    match shape:
        case ("struct", _, fields, *_):
            return list(fields)
    return [shape]


def reason_against(declared: Any) -> str | None:
    """Why a function of rows is called for each row, with the line; None if it is not."""
    if reason := _unusual(declared):
        return reason
    try:
        text, _ = translate(declared.inner or declared.callable, len(declared.shapes))
    except Untranslatable as error:
        return f"line {error.line}: {error}" if error.line else str(error)
    exact = declared.inner is not None
    why = _guest.why_not_columns(text, declared.signature, declared.admits_null, exact)
    return why and (f"line {why[0]}: {why[1]}" if why[0] else why[1])


def way(declared: Any) -> str:
    """How a function is evaluated, for `crosslane check --explain`. Nothing for functions that are not
    called with a row."""
    message = declared.message()
    if (message["kind"], message["calling"]) != ("scalar", "row"):
        return ""
    why = reason_against(declared)
    return "by columns" if why is None else f"row by row; {why}"
