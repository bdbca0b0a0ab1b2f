"""A first draft of what a file asks for: the options that allow what was noted, and no more."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from crosslane._cli.sandbox.notes import Notes

#: A folder stands for its files if more of them than this were read.
_MANY = 8
#: A folder also stands for its files if at least this many, and this part of all, were read.
_FEW, _NEARLY_ALL = 3, 0.8
#: The number of parts of a path such as ``/etc``. Such a folder stands for no files: too much is in it.
_TOP = 2
#: Where the kernel describes the machine. Libraries look there for processors and memory, and do without.
_MACHINE = Path("/sys")
#: The longest list that stands on one line.
_WIDTH = 90


class Draft:
    """The options for a file, and what to say of them."""

    def __init__(self, file: Path, notes: Notes) -> None:
        self._folder = file.resolve().parent
        #: What no sandbox allows, and what no option can name.
        self.never = set(notes.never)
        run, write = self._possible(notes.run), self._possible(notes.write)
        write = {path for path in write if not _is_below(path, write)}
        read = self._possible(notes.read) - run
        #: What was read, and is not among the options.
        self.left_out = {path for path in read if path.is_relative_to(_MACHINE)}
        read -= self.left_out
        read = {path for path in read if not _is_below(path, write) and path not in write}
        read, said = _merged(read)
        if notes.forks and not run:
            self.never.add("processes (such as of os.fork), unless allow_run names a program")
        #: The lists of options, with the comments before them.
        self._options = [
            ("allow_read", self._texts(read), [f"{self._text(path)}: {what}" for path, what in said]),
            ("allow_write", self._texts(write), []),
            ("allow_net", sorted(notes.hosts), self._about_names(notes)),
            ("allow_env", sorted(notes.variables), []),
            ("allow_run", self._texts(run), []),
        ]

    def _possible(self, paths: Iterable[str]) -> set[Path]:
        """The paths that an option can name: they are there, and have no commas."""
        found = set()
        for path in paths:
            # Options have commas between texts, and no spaces around them.
            if "," in path or path != path.strip():
                self.never.add(f"{path}, whose name has a comma, or a space at an end")
            elif os.path.exists(path):
                found.add(Path(path))
        return found

    def _text(self, path: Path) -> str:
        return str(path.relative_to(self._folder) if path.is_relative_to(self._folder) else path)

    def _texts(self, paths: Iterable[Path]) -> list[str]:
        return sorted(map(self._text, paths))

    @staticmethod
    def _about_names(notes: Notes) -> list[str]:
        only_asked = notes.names - {host.rpartition(":")[0] for host in notes.hosts}
        if not only_asked or only_asked == {"localhost"}:
            return []
        names = ", ".join(sorted(only_asked))
        return [f"asked for by name, and not connected to; list it without a port if that is needed: {names}"]

    def table(self) -> Iterator[str]:
        """The lines of the table for the file's block."""
        yield "[tool.crosslane]"
        yield 'sandbox = "on"'
        for name, texts, comments in self._options:
            yield from (f"# {_quoted(comment)[1:-1]}" for comment in comments)
            if not texts:
                continue
            line = f"{name} = [{', '.join(map(_quoted, texts))}]"
            if len(line) <= _WIDTH:
                yield line
            else:
                yield f"{name} = ["
                yield from (f"    {_quoted(text)}," for text in texts)
                yield "]"


def block(table: Iterable[str], mark: str, is_whole: bool) -> str:
    """A table as comments: the whole block, or lines to add to one."""
    lines = ["/// script", *table, "///"] if is_whole else list(table)
    return "".join(f"{mark} {line}\n" for line in lines)


def has_block(text: str, mark: str) -> bool:
    """Whether a file has a block already."""
    return re.search(rf"^{re.escape(mark)} /// script\s*$", text, re.MULTILINE) is not None


def _quoted(text: str) -> str:
    """A text of TOML, without what a terminal would not show."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in quoted)


def _is_below(path: Path, folders: set[Path]) -> bool:
    return any(folder in folders for folder in path.parents)


def _merged(paths: set[Path]) -> tuple[set[Path], list[tuple[Path, str]]]:
    """The paths, with folders in place of those of which nearly everything or much was read, and what was
    read of these folders."""
    said = {
        path: "its names were listed, and this allows all that is in it" for path in paths if path.is_dir()
    }
    while True:
        paths = {path for path in paths if not _is_below(path, paths)}
        by_folder: dict[Path, set[Path]] = defaultdict(set)
        for path in paths:
            by_folder[path.parent].add(path)
        for folder, inside in by_folder.items():
            there = len(os.listdir(folder))
            is_nearly_all = len(inside) >= _FEW and len(inside) >= _NEARLY_ALL * there
            if len(folder.parts) > _TOP and (len(inside) > _MANY or is_nearly_all):
                said[folder] = f"{len(inside)} of the {there} files and folders in it were read"
                paths = paths - inside | {folder}
                break
        else:
            return paths, sorted((folder, what) for folder, what in said.items() if folder in paths)
