"""``%load_ext crosslane``: cells of a notebook declare functions.

A cell that begins with ``%%crosslane python`` runs like any other cell, and each function that it
declares is registered. A cell in another language becomes a file, which is loaded. When a cell is
run again, its functions take the place of the earlier ones.
"""

from __future__ import annotations

import itertools
import re
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
from IPython.core.error import UsageError

from crosslane._declare import decorators
from crosslane._engines.duckdb import load, register

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

#: The suffixes of files by languages.
_SUFFIXES = {"javascript": "js", "typescript": "ts", "ruby": "rb", "lua": "lua"}
_USAGE = f"%%crosslane LANGUAGE [CONNECTION]: the language is python, {', '.join(_SUFFIXES)}"
#: A declaration in a language other than Python: its name in SQL.
_DECLARED = re.compile(r"^\s*(?:udf|udtf|udaf)\s*\(?\s*[\"'`](\w+)\s*\(", re.MULTILINE)


class Cells:
    """The cells of a shell that declare functions."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._made = tempfile.TemporaryDirectory(prefix="crosslane-cells-")
        self._folder = Path(self._made.name)
        self._numbers = itertools.count(1)
        #: The files of cells, by the language and the names of their functions.
        self._files: dict[tuple[str, str], Path] = {}

    def run(self, line: str, cell: str) -> None:
        """Runs a cell, and prints the signatures of its functions.

        Args:
            line: the language, and the variable of the connection if there are several.
            cell: the text of the cell.

        Raises:
            UsageError: if the cell cannot be run, or a function cannot be declared. IPython shows
                the message alone.
        """
        try:
            language, con = self._arguments(line)
            signatures = self._python(con, cell) if language == "python" else self._file(con, language, cell)
        except (duckdb.Error, decorators.DeclarationError) as error:
            # Without a traceback, whose frames would be ours.
            raise UsageError(str(error)) from error
        for signature in signatures:
            print(signature)

    def _arguments(self, line: str) -> tuple[str, duckdb.DuckDBPyConnection]:
        language, *names = shlex.split(line) or [""]
        if language not in ("python", *_SUFFIXES) or len(names) > 1:
            raise UsageError(_USAGE)
        variables = self._shell.user_ns
        cons = {
            name: value
            for name, value in variables.items()
            if isinstance(value, duckdb.DuckDBPyConnection) and not name.startswith("_")
        }
        if names:
            if names[0] not in cons:
                raise UsageError(f"{names[0]} is no connection; a connection is made by crosslane.connect()")
            return language, cons[names[0]]
        if len({id(con) for con in cons.values()}) != 1:
            found = f"there are several connections ({', '.join(cons)})" if cons else "there is no connection"
            advice = "name one: %%crosslane python con" if cons else "make one: con = crosslane.connect()"
            raise UsageError(f"{found}; {advice}")
        return language, next(iter(cons.values()))

    def _python(self, con: duckdb.DuckDBPyConnection, cell: str) -> list[str]:
        variables = self._shell.user_ns
        for decorator in (decorators.udf, decorators.udtf, decorators.udaf):
            variables.setdefault(decorator.__name__, decorator)
        before = decorators.declarations
        decorators.declarations = declared = []
        try:
            ran = self._shell.run_cell(cell)
        finally:
            decorators.declarations = before
        if not ran.success:
            # IPython has shown the error. The cells after this one must not run.
            raise UsageError("the cell failed, and none of its functions was registered")
        # The last function of a name counts, unless the name has overloads.
        last = {(one.name, id(one) if one.overload else None): one for one in declared}
        return [register(con, one.function) for one in last.values()]

    def _file(self, con: duckdb.DuckDBPyConnection, language: str, cell: str) -> list[str]:
        names = [(language, name.lower()) for name in _DECLARED.findall(cell)]
        # A cell that is run again is its file, which has changed. If the new text is broken, the engine
        # keeps the functions of the old one.
        known = (self._files[name] for name in names if name in self._files)
        path = next(known, None)
        if path is None:
            path = self._folder / f"cell_{next(self._numbers)}.{_SUFFIXES[language]}"
        path.write_text(cell)
        self._files.update(dict.fromkeys(names, path))
        return load(con, path)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Adds the magic ``%%crosslane`` to a shell, as ``%load_ext`` asks for it."""
    cells = Cells(shell)

    def crosslane(line: str, cell: str) -> Any:
        """Declares functions in a cell: ``%%crosslane LANGUAGE [CONNECTION]``."""
        cells.run(line, cell)

    shell.register_magic_function(crosslane, "cell", "crosslane")
