"""Makes the native files of a folder fit for other machines: `bundle.py FOLDER`, for the wheel and the gem.

Strips the files, removes paths of the build, and adds the libraries that V8 needs and the licences.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
V8 = ROOT / ".v8" / "lib"
#: Every Linux with this C library has these.
SYSTEM = re.compile(r"(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+))\.so")
#: The folders in which the program looks for V8. The first is beside itself.
PATHS = re.compile(rb"\$ORIGIN/v8(:[^\0]*)?\0")
#: The copyright notices of fetched Debian packages, and of installed ones.
NOTICES = ROOT / ".v8" / "notices"
DOCUMENTS = Path("/usr/share/doc")
#: The bytes that DuckDB reads from the end of an extension. `strip` would remove them.
FOOTER = 512


def finish(file: Path) -> None:
    """Strips a program or a library, and leaves it one folder in which it looks for V8."""
    content = file.read_bytes()
    footer = content[-FOOTER:] if file.suffix == ".duckdb_extension" else b""
    subprocess.run(["strip", "--strip-unneeded", file], check=True)
    content = PATHS.sub(lambda found: b"$ORIGIN/v8".ljust(len(found[0]), b"\0"), file.read_bytes())
    file.write_bytes(content + footer)


def needed(program: Path) -> dict[str, Path]:
    """The libraries that a program or library needs, by their names."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(V8)}
    listed = subprocess.run(["ldd", program], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = re.findall(r"^\s*(\S+) => (/\S+)", listed.stdout, re.MULTILINE)
    return {name: Path(path) for name, path in found}


def bundle_v8(folder: Path) -> dict[str, str]:
    """Copies V8 and the libraries that it needs. Returns their copyright notices."""
    (library,) = V8.glob("libnode.so.*")
    notices = {file.name: notice(file) for file in NOTICES.iterdir()}
    return notices | bundle({library.name: library, **needed(library)}, folder)


def bundle(libraries: dict[str, Path], folder: Path) -> dict[str, str]:
    """Copies libraries that not every Linux has. Returns the copyright notices of those that are installed."""
    folder.mkdir(parents=True, exist_ok=True)
    notices = {}
    for name, path in libraries.items():
        if not SYSTEM.match(name):
            copy = folder / name
            copy.unlink(missing_ok=True)
            shutil.copyfile(path.resolve(), copy)
            finish(copy)
            if not path.is_relative_to(V8):
                package = owner(path)
                notices[package] = notice(DOCUMENTS / package / "copyright")
    return notices


def notice(file: Path) -> str:
    """The text of a copyright notice. Some are older than UTF-8."""
    if not file.exists():
        sys.exit(f"{file} is not there, but what is passed on needs it")
    return file.read_text(encoding="utf-8", errors="replace")


def owner(library: Path) -> str:
    """The Debian package of an installed library."""
    # /lib is a link to /usr/lib, and the package names one of them.
    for path in (library, library.resolve(), Path("/usr", *library.parts[1:])):
        found = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.partition(":")[0]
    sys.exit(f"{library} is of no Debian package, so that its copyright notice is not known")


def write_licences(folder: Path, notices: dict[str, str]) -> None:
    """Copies our licence, and writes those of the linked crates and of the copied libraries."""
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host()]
    metadata = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    # Crates with the same text share one entry.
    crates: dict[str, list[str]] = {}
    for package in sorted(json.loads(metadata.stdout)["packages"], key=itemgetter("name", "version")):
        if package["source"] is not None:
            name = f"{package['name']} {package['version']} ({package['license']})"
            for text in licences(Path(package["manifest_path"]).parent):
                crates.setdefault(text, []).append(name)
    parts = [f"==== {', '.join(names)}\n\n{text}" for text, names in crates.items()]
    if (folder / "libduckdb.so").exists():
        parts.append(f"==== libduckdb.so\n\n{notice(ROOT / '.duckdb' / 'LICENSE')}")
    for package, text in sorted(notices.items()):
        parts.append(f"==== {package}, Debian's build, in v8 or guests\n\n{text}")
    (folder / "THIRD_PARTY_LICENSES").write_text("\n".join(parts), encoding="utf-8")


def licences(folder: Path) -> list[str]:
    """The texts of a crate's licences."""
    wanted = re.compile("LICEN[CS]E|COPYING|NOTICE", re.IGNORECASE)
    return [notice(file) for file in sorted(folder.iterdir()) if file.is_file() and wanted.match(file.name)]


def host() -> str:
    """The platform that cargo builds for."""
    version = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.search(r"^host: (.*)$", version, re.MULTILINE)[1]


def main() -> None:
    """The program."""
    folder = Path(sys.argv[1])
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "libduckdb.so" and file.read_bytes()[:4] == b"\x7fELF":
            finish(file)
    notices = bundle_v8(folder / "v8") if (folder / "v8_native.so").exists() else {}
    for program in folder.glob("guests/*/crosslane-*"):
        notices |= bundle(needed(program), program.parent)
    write_licences(folder, notices)


if __name__ == "__main__":
    main()
