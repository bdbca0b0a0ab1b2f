"""A function in each language, with an option."""

from __future__ import annotations

from pathlib import Path

#: The text of the file, by language. `OPTION` and `VALUE` are replaced.
TRIPLED = {
    "py": """
from crosslane import udf
@udf(OPTION=VALUE)
def tripled(x: int) -> int:
    return 3 * x
""",
    "rb": 'udf("tripled(x BIGINT) -> BIGINT", OPTION: VALUE) { |x| 3 * x }',
    "js": 'udf("tripled(x BIGINT) -> BIGINT", { OPTION: VALUE }, (x) => 3 * x);',
    "lua": 'udf("tripled(x BIGINT) -> BIGINT", { OPTION = VALUE }, function(x) return 3 * x end)',
}


def tripled(folder: Path, language: str, option: str, value: str) -> Path:
    """Writes the function in a language, with this text as the value of an option. Returns the path of the
    file."""
    path = folder / f"functions.{language}"
    path.write_text(TRIPLED[language].replace("OPTION", option).replace("VALUE", value))
    return path
