"""The exceptions of functions, by the texts of DuckDB's errors."""

from __future__ import annotations

import ast
import builtins
import contextlib
import re
import sys
from typing import Any


def cause_of(text: str, name: str) -> BaseException | None:
    """An exception of the class that a function in Python has raised, with its message.

    The exception itself stayed in the worker. None if this process does not know the class, or if
    the function raised nothing.
    """
    pattern = rf"(?:Invalid Input Error: )+{re.escape(name)}(?:, batch \d+)?: ([\w.]+): (.*?)(?:\n  |$)"
    found = re.match(pattern, text, re.DOTALL)
    made = found and _class_of(found[1])
    if not found or not made:
        return None
    message: Any = found[2]
    if issubclass(made, KeyError):
        # Its message is the source of its argument.
        with contextlib.suppress(ValueError, SyntaxError):
            message = ast.literal_eval(message)
    try:
        # The class may need other arguments, and the message is made already.
        error = made.__new__(made, message)
    except Exception:
        return None
    error.args = (message,)
    return error


def _class_of(path: str) -> type[BaseException] | None:
    """The class of an exception, by its module and its name."""
    parts = path.split(".")
    for count in range(len(parts) - 1, -1, -1):
        home = ".".join(parts[:count])
        found: Any = sys.modules.get(home) if home else _either(parts[0])
        for part in parts[count:]:
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
    return None


def _either(name: str) -> Any:
    """The built-in names, or those of the program: their classes have no module in errors."""
    return builtins if hasattr(builtins, name) else sys.modules.get("__main__")
