"""Checks how the code is laid out: small folders, short files, and no circles of modules.

    python tools/structure.py [FOLDER]

- A folder has at most 12 files of code, and a file of code at most 600 lines. A page of `docs/internals` has at
  most 150 lines.
- The modules of a Rust crate have no circles. A circle is a group of modules that depend on each other. A module and
  one of its direct children may depend on each other.

A module depends on another one if a path in it (in a `use`, or in the code) leads to an item that the other
one defines. A path to a re-export leads to the module that defines the item. A module does not depend on what
it only re-exports, so `lib.rs` and `mod.rs` files may name all their children. Tests do not count.

The program prints what is wrong and how to mend it. It then ends with exit code 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES, MOST_LINES, MOST_LINES_OF_PAGE = 12, 600, 150
#: How the names of files of code end. A file without an ending is code if it is a script.
CODE = {".cc", ".h", ".java", ".js", ".lua", ".mjs", ".py", ".pyi", ".rb", ".rs", ".scala", ".ts"}

#: A module of a crate, by its path: `()` is the root, `("wire", "frame")` is `crate::wire::frame`.
Module = tuple[str, ...]
Graph = dict[Module, set[Module]]

VISIBILITY = r"(?:pub(?:\([^)]*\))?\s+)?"
#: A path in the code, such as `crate::wire::Frame`.
PATH = re.compile(r"(?<![\w:$])(?:crate|self|super)(?:::\w+)+")
USE = re.compile(rf"^\s*({VISIBILITY})use\s+([^;]+);", re.MULTILINE)
#: The declaration of a module in a file of its own.
CHILD = re.compile(rf"^\s*(?:#\[path = \"([^\"]+)\"\]\s*)?{VISIBILITY}mod\s+(\w+);", re.MULTILINE)
TESTS = re.compile(rf"#\[cfg\((?:all\()?test\b[^\]]*\]\s*{VISIBILITY}mod\s+\w+\s*\{{")


def code_of(file: Path) -> str:
    """The text of a Rust file without its comments, and up to its tests."""
    text = re.sub(r"//[^\n]*", "", file.read_text())
    return TESTS.split(text)[0]


def used_paths(tree: str, prefix: Module = ()) -> Iterator[tuple[Module, str]]:
    """The paths of a `use`, and the names that they get.

    >>> list(used_paths("a::{b, c as d}"))
    [(('a', 'b'), 'b'), (('a', 'c'), 'd')]
    """
    depth, start, items = 0, 0, []
    for index, letter in enumerate(tree + ","):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            items.append(tree[start:index].strip())
            start = index + 1
    for item in filter(None, items):
        head, brace, rest = item.partition("{")
        names = tuple(filter(None, (name.strip() for name in head.split("::"))))
        if brace:
            yield from used_paths(rest.rpartition("}")[0], prefix + names)
            continue
        last, _, alias = names[-1].partition(" as ")
        path = prefix + names[:-1] + (() if last == "self" else (last.strip(),))
        yield path, alias.strip() or path[-1]


class Crate:
    """The modules of a crate."""

    def __init__(self, root: Path) -> None:
        self.files: dict[Module, Path] = {}
        #: The paths that a module uses.
        self.paths: dict[Module, list[Module]] = {}
        #: The paths that a module re-exports, by their new names.
        self.exports: dict[Module, dict[str, Module]] = {}
        self._read((), root)

    def _read(self, module: Module, file: Path) -> None:
        """Reads a module and its children."""
        self.files[module], self.paths[module], self.exports[module] = file, [], {}
        text = code_of(file)
        for visibility, tree in USE.findall(text):
            for path, name in used_paths(re.sub(r"\s+", " ", tree)):
                self.paths[module].append(path)
                if visibility:
                    self.exports[module][name] = path
        text = USE.sub("", text)
        self.paths[module] += [tuple(path.split("::")) for path in PATH.findall(text)]
        folder = file.parent if file.stem in ("lib", "main", "mod") else file.parent / file.stem
        for place, name in CHILD.findall(text):
            files = [file.parent / place] if place else [folder / f"{name}.rs", folder / name / "mod.rs"]
            for child in filter(Path.exists, files):
                self._read((*module, name), child)

    def target(
        self, module: Module, path: Module, seen: tuple[tuple[Module, str], ...] = ()
    ) -> Module | None:
        """The module that defines what a path in a module names. None if it is in another crate."""
        at, names = module, path
        if names[0] not in ("crate", "self", "super"):
            if (*at, names[0]) not in self.files and names[0] not in self.exports[at]:
                return None
        elif names[0] == "crate":
            at, names = (), names[1:]
        while names and names[0] in ("self", "super"):
            at, names = (at[:-1] if names[0] == "super" else at), names[1:]
        while names:
            if (*at, names[0]) in self.files:
                at, names = (*at, names[0]), names[1:]
            elif names[0] in self.exports[at] and (at, names[0]) not in seen:
                exported = self.exports[at][names[0]] + names[1:]
                return self.target(at, exported, (*seen, (at, names[0])))
            elif "*" in self.exports[at] and (at, "*") not in seen and at != module:
                exported = (*self.exports[at]["*"][:-1], *names)
                found = self.target(at, exported, (*seen, (at, "*")))
                return at if found is None else found
            else:
                break
        return at

    def dependencies(self) -> Graph:
        """The modules that each module depends on."""
        graph = {
            module: {target for path in paths if (target := self.target(module, path)) is not None} - {module}
            for module, paths in self.paths.items()
        }
        for module, exports in self.exports.items():
            text = USE.sub("", code_of(self.files[module]))
            for name, path in exports.items():
                others = {self.target(module, other) for other in self.paths[module] if other != path}
                target = self.target(module, path)
                if target not in others and not re.search(rf"\b{re.escape(name)}\b", text):
                    graph[module].discard(target)
        return graph


def circles(graph: Graph) -> list[list[Module]]:
    """The groups of modules that depend on each other: the strongly connected components (Tarjan, 1972)."""
    order: dict[Module, int] = {}
    low: dict[Module, int] = {}
    stack: list[Module] = []
    found: list[list[Module]] = []

    def visit(module: Module) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == order[module]:
            start = stack.index(module)
            found.append(sorted(stack[start:]))
            del stack[start:]

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return [circle for circle in found if len(circle) > 1]


def wrong_circles(root: Path, files: list[str]) -> Iterator[str]:
    """Describes each circle of modules, except a module and its direct child."""
    for manifest in sorted(file for file in files if PurePosixPath(file).name == "Cargo.toml"):
        for name in ("lib.rs", "main.rs"):
            file = (root / manifest).parent / "src" / name
            if not file.exists():
                continue
            crate = Crate(file)
            graph = crate.dependencies()
            for circle in circles(graph):
                if len(circle) == 2 and circle[1][:-1] == circle[0]:
                    continue
                yield (
                    f"a circle of {len(circle)} modules: move what two of them need into a module below both, "
                    "or pass it as an argument"
                )
                for module in circle:
                    used = [crate.files[other] for other in sorted(graph[module] & set(circle))]
                    names = ", ".join(str(each.relative_to(root)) for each in used)
                    yield f"  {crate.files[module].relative_to(root)} uses {names}"


def is_code(file: Path) -> bool:
    """Whether a file is code: by the end of its name, or as a script that names its interpreter."""
    if file.suffix:
        return file.suffix in CODE
    with file.open("rb") as opened:
        return opened.read(2) == b"#!"


def wrong_sizes(root: Path, files: list[str]) -> Iterator[str]:
    """Describes each folder that has too many files, and each file that is too long."""
    code = [file for file in files if is_code(root / file)]
    for folder, count in sorted(Counter(str(PurePosixPath(file).parent) for file in code).items()):
        if count > MOST_FILES:
            yield f"{folder} has {count} files of code: move those of a subject into a folder (at most {MOST_FILES})"
    pages = [file for file in files if file.startswith("docs/internals/")]
    for file, most in [
        *((file, MOST_LINES) for file in code),
        *((page, MOST_LINES_OF_PAGE) for page in pages),
    ]:
        lines = len((root / file).read_bytes().splitlines())
        if lines > most:
            yield f"{file} has {lines} lines: split it by subject (at most {most})"


def main() -> None:
    """The program."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    files = [file for file in listed.split("\0") if file and (root / file).is_file()]
    found = [*wrong_sizes(root, files), *wrong_circles(root, files)]
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
