"""The table of conformance/ in Spark's types and SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "conformance"
TABLE = json.loads((FOLDER / "cases.json").read_text())

#: Types that Spark does not have.
NO_TYPE = {
    "BIGNUM",
    "BIT",
    "ENUM",
    "GEOMETRY",
    "HUGEINT",
    "TIME",
    "TIMESTAMP_MS",
    "TIMESTAMP_NS",
    "TIMESTAMP_S",
    "TIMETZ",
    "TIME_NS",
    "UBIGINT",
    "UHUGEINT",
    "UINTEGER",
    "UNION",
    "USMALLINT",
    "UTINYINT",
    "UUID",
    # An array may have any length.
    "[n]",
}

#: The cases that are left out, because Spark does not have their types, or types below them.
LEFT_OUT = [
    "HUGEINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
    "UHUGEINT",
    "BIT",
    "BIGNUM",
    "GEOMETRY",
    "TIME",
    "TIME_NS",
    "TIMETZ",
    "TIMESTAMP_S",
    "TIMESTAMP_MS",
    "TIMESTAMP_NS",
    "UUID",
    "ENUM('small', 'it''s', '大', '')",
    "ENUM('v0', 'v1', 'v2', 'v3', 'v4', 'v5',...",
    "INTEGER[3]",
    "VARCHAR[2][]",
    "UUID[]",
    "STRUCT(a TIMETZ, b BIGNUM, c BIT[2])[]",
    "UNION(num INTEGER, str VARCHAR, more UNI...",
    "UNION(a TINYINT, b TINYINT, tag BIT)[]",
]

#: Values that Spark does not have. Its dates and times have no infinity.
NO_VALUES = {"DATE": ["infinity", "-infinity"]}
NO_VALUES |= dict.fromkeys(("TIMESTAMP", "TIMESTAMPTZ"), NO_VALUES["DATE"])

#: Spark's SQL for values whose text Spark cannot parse.
WRITTEN = {
    "5877642-06-25 (BC)": "date_from_unix_date(-2147483646)",
    "294247-01-10": "date_from_unix_date(106751992)",
    "294246-01-01 00:00:00": "CAST(timestamp_seconds(9223339708800) AS TIMESTAMP_NTZ)",
    "294246-01-01 00:00:00+00": "timestamp_seconds(9223339708800)",
    "0 days": "make_interval()",
    "14 months 3 days 04:05:06.789": "make_interval(0, 14, 0, 3, 4, 5, 6.789)",
    "00:00:00.000001": "make_interval(0, 0, 0, 0, 0, 0, 0.000001)",
    "178956970 years": "make_interval(178956970)",
    "2147483647 days": "make_interval(0, 0, 0, 2147483647)",
    "-2147483648 days": "make_interval(0, 0, 0, -2147483648)",
}

SPARK = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "TINYINT",
    "SMALLINT": "SMALLINT",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
    "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE",
    "VARCHAR": "STRING",
    "JSON": "STRING",
    "BLOB": "BINARY",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP_NTZ",
    "TIMESTAMPTZ": "TIMESTAMP",
    "INTERVAL": "INTERVAL",
}


class NoTypeError(Exception):
    """Spark has no such type."""


class Type:
    """A type of the table, read from its text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.children: dict[str, Type] = {}
        if array := re.fullmatch(r"(.*)\[(\d*)\]", text, re.DOTALL):
            self.kind = "[n]" if array[2] else "[]"
            self.children = {"element": Type(array[1])}
        elif nested := re.fullmatch(r"(STRUCT|MAP|UNION|ENUM)\((.*)\)", text, re.DOTALL):
            self.kind = nested[1]
            if self.kind == "MAP":
                key, of = split(nested[2])
                self.children = {"key": Type(key), "value": Type(of)}
            elif self.kind != "ENUM":
                for field in split(nested[2]):
                    name, of = re.fullmatch(r'(".*?"|\w+) (.*)', field, re.DOTALL).groups()
                    self.children[name.strip('"')] = Type(of)
        else:
            self.kind = text.split("(")[0]

    def kinds(self) -> set[str]:
        """The kinds of the type and of all types below it."""
        return {self.kind}.union(*(child.kinds() for child in self.children.values()))

    @property
    def spark(self) -> str:
        """Spark's name of the type."""
        below = {name: child.spark for name, child in self.children.items()}
        match self.kind:
            case "[]":
                return f"ARRAY<{below['element']}>"
            case "STRUCT":
                return "STRUCT<" + ", ".join(f"`{name}`: {of}" for name, of in below.items()) + ">"
            case "MAP":
                return f"MAP<{below['key']}, {below['value']}>"
            case "DECIMAL":
                return self.text
        return SPARK[self.kind]

    def sql(self, text: str) -> str:
        """A value's text as Spark's SQL."""
        return Value(text).read(self, whole=True)


def split(text: str) -> list[str]:
    """The parts between the commas of the outermost level."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


class Value:
    """Reads a value from the text that DuckDB casts to its type."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def read(self, type_: Type, whole: bool = False) -> str:
        if not whole and self.word("NULL"):
            return f"CAST(NULL AS {type_.spark})"
        match type_.kind:
            case "[]":
                values = [self.read(type_.children["element"]) for _ in self.between("[", "]")]
                made = f"array({', '.join(values)})"
            case "STRUCT":
                made = "named_struct(" + ", ".join(self.fields(type_)) + ")"
            case "MAP":
                made = "map(" + ", ".join(self.entries(type_)) + ")"
            case _:
                text = self.text if whole else self.scalar()
                return literal(type_, text)
        return f"CAST({made} AS {type_.spark})"

    def fields(self, type_: Type) -> Iterator[str]:
        for _ in self.between("{", "}"):
            name = self.scalar()
            assert self.word(":")
            yield f"'{name}', {self.read(type_.children[name])}"

    def entries(self, type_: Type) -> Iterator[str]:
        for _ in self.between("{", "}"):
            key = self.read(type_.children["key"])
            assert self.word("=")
            yield f"{key}, {self.read(type_.children['value'])}"

    def between(self, begin: str, end: str) -> Iterator[None]:
        assert self.word(begin), self.text[self.at :]
        while not self.word(end):
            yield
            self.word(",")

    def word(self, word: str) -> bool:
        """Whether this word comes next. If so, it is skipped."""
        while self.text[self.at : self.at + 1] == " ":
            self.at += 1
        here = self.text.startswith(word, self.at)
        self.at += len(word) * here
        return here

    def scalar(self) -> str:
        self.word("")
        found = re.compile(r"'([^']*)'|([^,=:\]}]+)").match(self.text, self.at)
        self.at = found.end()
        return found[1] if found[1] is not None else found[2]


def literal(type_: Type, text: str) -> str:
    if text in WRITTEN:
        return WRITTEN[text]
    if type_.kind == "BLOB":
        parts = re.findall(r"\\x(..)|(.)", text, re.DOTALL)
        return "X'" + "".join(code or f"{ord(char):02X}" for code, char in parts) + "'"
    # This text means the same for each value of `spark.sql.parser.escapedStringLiterals`.
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"CAST('{quoted}' AS {type_.spark})"


def shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else value["text"] * value["repeat"]


def sql_of(type_: Type, value: Any) -> str:
    """A value of the table as SQL."""
    if isinstance(value, str):
        return type_.sql(value)
    return f"CAST(repeat({type_.sql(value['text'])}, {value['repeat']}) AS {type_.spark})"


def repeated(type_: Type, value: Any) -> str:
    """Does the same as `sql_of`. A repeated BINARY is written as a repeated text."""
    if type_.kind == "BLOB" and not isinstance(value, str):
        code = value["text"].removeprefix("\\x")
        return f"unhex(repeat('{code}', {value['repeat']}))"
    return sql_of(type_, value)


#: The cases that Spark has, by their index in the table.
CASES = {index: case for index, case in enumerate(TABLE["cases"]) if not Type(case["type"]).kinds() & NO_TYPE}

LANGUAGES = {"python": "py", "js": "js", "ruby": "rb", "lua": "lua"}
FOLDERS = {"python": "python", "js": "javascript", "ruby": "ruby", "lua": "lua"}
#: The name of a table function or an aggregate, where it is declared.
DECLARED = re.compile(r"""\bud[ta]f[(\s]+"\w+(?=\()""")

#: Functions that return their argument.
KINDS = {
    "python-row": "echo",
    "python-vectorized": "echo_columns",
    "js-row": "js_echo",
    "js-vectorized": "js_echo_columns",
    "ruby-row": "ruby_echo",
    "ruby-vectorized": "ruby_echo_columns",
    "lua-row": "lua_echo",
    "lua-vectorized": "lua_echo_columns",
}


def source(language: str, name: str) -> str:
    """The text of a file of functions in a language."""
    return (FOLDER / FOLDERS[language] / f"{name}.{LANGUAGES[language]}").read_text()


def write_kinds(folder: Path) -> list[Path]:
    """Writes the table functions and aggregates of all languages. Their names end with the language."""
    paths = []
    for language in ("python", "js", "ruby"):
        for name in ("tables", "aggregates"):
            paths.append(folder / f"{name}.{LANGUAGES[language]}")
            paths[-1].write_text(DECLARED.sub(rf"\g<0>_in_{language}", source(language, name)))
    return paths


def write_echoes(folder: Path) -> list[Path]:
    """Writes scalar functions of all languages. Some return their argument, and some return a text about
    it."""
    texts = {language: [source(language, "saw")] for language in LANGUAGES}
    texts["python"].insert(0, "from crosslane import udf")
    for index, case in CASES.items():
        type_ = case["type"]
        for language, lines in texts.items():
            saw = f"{language}_saw_{index}(x {type_}) -> VARCHAR"
            prefix = "" if language == "python" else f"{language}_"
            row, columns = (
                f"{prefix}{name}_{index}(x {type_}) -> {type_}" for name in ("echo", "echo_columns")
            )
            match language:
                case "python":
                    lines.append(f"@udf({saw!r})\ndef python_saw_{index}(x): return saw(x)")
                    lines.append(f"@udf({row!r})\ndef echo_{index}(x): return x")
                    lines.append(f"@udf({columns!r}, vectorized=True)\ndef echo_columns_{index}(x): return x")
                case "js":
                    lines.append(f"udf({json.dumps(saw)}, {{ bigint: true }}, saw);")
                    lines.append(f"udf({json.dumps(row)}, {{ bigint: true }}, (x) => x);")
                    lines.append(
                        f"udf({json.dumps(columns)}, {{ bigint: true, vectorized: true }}, (x) => x);"
                    )
                case "ruby":
                    lines.append(f"udf {json.dumps(saw)} do |x| saw(x) end")
                    lines.append(f"udf {json.dumps(row)} do |x| x end")
                    lines.append(f"udf {json.dumps(columns)}, vectorized: true do |x| x end")
                case "lua":
                    lines.append(f"udf([=[{saw}]=], saw)")
                    lines.append(f"udf([=[{row}]=], function(x) return x end)")
                    lines.append(f"udf([=[{columns}]=], {{ vectorized = true }}, function(x) return x end)")
    paths = []
    for language, suffix in LANGUAGES.items():
        paths.append(folder / f"echoes.{suffix}")
        paths[-1].write_text("\n".join(texts[language]))
    return paths
