"""The steps of the Dockerfile for Kubernetes, in a fresh folder in place of an image."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from ..conftest import CONF, QUICK
from .test_jar import PACKAGE, write_jar

DOCKERFILE = Path(__file__).parents[3] / "examples" / "spark" / "kubernetes" / "Dockerfile"
#: Steps that only an image needs. `tools/setup` installs the same packages of Debian.
ELSEWHERE = ("ARG", "FROM", "USER", "WORKDIR", "ENTRYPOINT")
DEBIAN, USER = "RUN apt-get ", "RUN useradd "

PROGRAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print("result:", spark.sql("SELECT sum(twice(id)), sum(thrice(id)) FROM range(10)").first())
spark.stop()
"""


def steps() -> list[str]:
    """The steps of the file, without comments."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    assert not any(line.endswith("\\") for line in lines)
    return lines


def write_wheel(path: Path) -> None:
    """A wheel of the package as it is in the source tree."""
    info = "crosslane-0.1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in (
            "__init__.py",
            "_guest.abi3.so",
            "_runtime",
            "_worker",
            "_declare",
            "_engines",
            "types.py",
            "spark.py",
            "_arrow",
            "_client",
        ):
            found = [PACKAGE / name, *(PACKAGE / name).rglob("*")]
            for file in found:
                if file.is_file() and "__pycache__" not in file.parts:
                    wheel.write(file, Path("crosslane", file.relative_to(PACKAGE)))
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: crosslane\nVersion: 0.1.0\n")
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.any_spark
def test_functions_run_in_what_the_dockerfile_makes(tmp_path: Path) -> None:
    context, root = tmp_path / "context", tmp_path / "root"
    context.mkdir()
    write_wheel(context / "crosslane-0.1.0-py3-none-any.whl")
    (context / "requirements.txt").write_text("")
    write_jar(context / "crosslane-spark.jar")
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    for step in steps():
        if step.startswith((*ELSEWHERE, DEBIAN, USER)):
            continue
        instruction, rest = step.split(" ", 1)
        rest = re.sub(r"(?<![\w/])/opt/", f"{root}/opt/", rest)
        if instruction == "COPY" and rest.startswith("--from=spark"):
            # A copy of Spark, with its own folder for jars.
            if rest.endswith("/opt/spark"):
                (root / "opt" / "spark" / "jars").mkdir(parents=True)
                for entry in [*home.iterdir(), *(home / "jars").iterdir()]:
                    if entry.name != "jars":
                        (root / "opt" / "spark" / entry.relative_to(home)).symlink_to(entry)
        elif instruction == "COPY":
            *sources, target = shlex.split(rest)
            assert target.endswith("/")
            Path(target).mkdir(parents=True)
            for pattern in sources:
                (source,) = context.glob(pattern)
                shutil.copy2(source, target)
        elif instruction == "ENV":
            name, value = rest.split("=", 1)
            environment[name] = value
        else:
            assert instruction == "RUN", step
            rest = rest.replace("python3 -m venv", f"{sys.executable} -m venv")
            subprocess.run(["bash", "-ec", rest], check=True, env=environment, cwd=tmp_path)
    # The environment of the tests has the packages that Spark needs in Python, and those of requirements.txt.
    (packages,) = (root / "opt/crosslane/environment").glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(str(Path(pyspark.__file__).parents[1]))
    (tmp_path / "own.py").write_text(
        "import crosslane\n\n@crosslane.udf\ndef twice(x: int) -> int:\n    return 2 * x if '/opt/crosslane/environment/' in crosslane.__file__ else 0\n"
    )
    (tmp_path / "more.py").write_text(
        "from crosslane import udf\n\n@udf\ndef thrice(x: int) -> int:\n    return 3 * x\n"
    )
    (tmp_path / "program.py").write_text(PROGRAM)
    own = {
        **CONF,
        "spark.sql.extensions": "dev.crosslane.spark.CrosslaneExtensions",
        "spark.crosslane.functions": f"{tmp_path}/own.py,{tmp_path}/more.py",
        "spark.local.dir": str(tmp_path / "local"),
        "spark.executor.extraJavaOptions": QUICK,
    }
    options = [option for item in own.items() for option in ("--conf", "=".join(item))]
    submit = [
        root / "opt/spark/bin/spark-submit",
        "--master",
        "local-cluster[1,1,1024]",
        *options,
        tmp_path / "program.py",
    ]
    done = subprocess.run(submit, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert "result: Row(sum(twice(id))=90, sum(thrice(id))=135)" in done.stdout, (
        done.stdout + done.stderr[-3000:]
    )
