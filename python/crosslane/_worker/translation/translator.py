"""The translator: resolves names, and writes the statements down.

The native part knows operators, methods of ``str``, builtin functions, ``math`` and ``datetime``, and
finds the types (the crate ``crosslane-columns``). This module resolves names: what a global variable,
a builtin or a variable around the function is.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import datetime
import math
import os
import struct
import time
from collections.abc import Iterable
from types import CellType, FunctionType, ModuleType
from typing import Any

from crosslane import _guest
from crosslane._worker import inlining
from crosslane._worker.translation import guards, left

#: The builtin functions that the native part knows, those of `math`, and the classes of `datetime` with
#: their parameters.
_BUILTINS = ("abs", "bool", "float", "format", "int", "len", "max", "min", "round", "str")
_PARAMETERS = {
    "date": ("year", "month", "day"),
    "datetime": ("year", "month", "day", "hour", "minute", "second", "microsecond"),
    "timedelta": ("days", "seconds", "microseconds", "milliseconds", "minutes", "hours", "weeks"),
}
_CLASS_METHODS = ("date.fromisoformat", "date.fromordinal", "datetime.fromisoformat", "datetime.strptime")
_MATH = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "degrees",
    "erf", "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fmod", "gcd", "isfinite", "isinf", "isnan", "isqrt", "lcm",
    "log", "log10", "log1p", "log2", "pow", "radians", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_OBJECTS = {
    **{name: getattr(builtins, name) for name in _BUILTINS},
    **{f"math.{name}": getattr(math, name) for name in _MATH},
    **{name: getattr(datetime, name) for name in _PARAMETERS},
}
_KNOWN = {id(known): name for name, known in _OBJECTS.items()}
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
    ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
#: How deep functions may call one another, how deep expressions may be, and how many of them a
#: function may have with all functions that it calls. Each has memory of its own for 2,048 values.
_DEEPEST, _DEEPEST_EXPRESSION, _MOST_EXPRESSIONS = 8, 24, 500
#: How many conditions may be inside one another; `elif` counts as well.
_DEEPEST_STATEMENT = 30
#: How many constants a look-up may have. Before each batch, a lane looks whether a dict, set or list
#: has changed.
_MOST_CONSTANTS = {
    tuple: 100_000, frozenset: 100_000, dict: 100_000 if _guest.Elements.are_fast() else 10_000, list: 10_000,
    set: 1_000,
}  # fmt: skip
_MOST_OF_ALL = 200_000
_EPOCH = datetime.datetime(1970, 1, 1)

#: What `translate` gives: the function as JSON, and its guards.
Translation = tuple[str, list[guards.Guard]]


class Untranslatable(Exception):
    """Why a function is called row by row: the reason, and the line in its file."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


@dataclasses.dataclass
class Counter:
    """What all functions of a translation have together."""

    expressions: int = 0
    constants: int = 0


class Translator:
    """Translates one function."""

    def __init__(
        self,
        function: FunctionType,
        sources: inlining.Sources,
        outer: list[FunctionType],
        counter: Counter,
        line: int | None = None,
    ) -> None:
        self._function = function
        self._sources = sources
        self._counter = counter
        #: If the function is in another file than the first one: the line of its call.
        self._line = line
        self._outer = [*outer, function]
        self._code = function.__code__
        self._cells = dict(zip(self._code.co_freevars, function.__closure__ or ()))
        self._hidden = 0
        self._depth = 0
        self._statement_depth = 0
        # The code may be replaced.
        self.guards: list[guards.Guard] = [(function, "", self._code)]

    def source(self) -> dict[str, Any]:
        """The whole function."""
        first = self._code.co_firstlineno
        if not inlining.may_loop(self._code):
            reason = "it has comprehensions, inner functions, unusual parameters or none, or looks at frames"
            raise self._refused(first, reason)
        node = inlining.source_of(self._code, self._sources)
        if node is None:
            raise self._refused(first, "its source is not there, or is another one")
        if isinstance(node, ast.Lambda):
            body: list[Any] = [{"return": self._expression(node.body)}]
        else:
            body = self._block(node.body)
        names = list(self._code.co_varnames[: self._code.co_argcount])
        return {"parameters": names, "body": body}

    def _line_of(self, node: ast.expr | ast.stmt) -> int:
        """The line of the first function's file to which a part belongs."""
        return self._line or node.lineno

    def _refuse(self, node: ast.AST, reason: str) -> Untranslatable:
        return self._refused(getattr(node, "lineno", 0), reason)

    def _refused(self, line: int, reason: str) -> Untranslatable:
        if self._line is None:
            return Untranslatable(reason, line)
        place = f"{self._code.co_name} in line {line} of {os.path.basename(self._code.co_filename)}"
        return Untranslatable(f"{reason}: {place}", self._line)

    def _block(self, statements: list[ast.stmt]) -> list[Any]:
        self._statement_depth += 1
        if self._statement_depth > _DEEPEST_STATEMENT:
            raise self._refuse(statements[0], "conditions that are nested too deeply")
        made = [made for statement in statements for made in self._statement(statement)]
        self._statement_depth -= 1
        return made

    def _statement(self, node: ast.stmt) -> list[Any]:
        match node:
            case ast.Return(value=value):
                return [
                    {"return": [self._line_of(node), "none"] if value is None else self._expression(value)}
                ]
            case ast.Assign(targets=[target], value=value):
                return self._assign(target, value)
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                return self._assign(target, value)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                before = ast.copy_location(ast.Name(name, ast.Load()), target)
                return self._assign(target, ast.copy_location(ast.BinOp(before, op, value), node))
            case ast.If(test=test, body=body, orelse=orelse):
                return [{"if": [self._expression(test), self._block(body), self._block(orelse)]}]
            case ast.Raise(exc=raised, cause=cause):
                self._check_left([raised, cause])
                return [{"leave": self._line_of(node)}]
            case ast.Assert(test=test, msg=message):
                self._check_left([message])
                return [{"if": [self._expression(test), [], [{"leave": self._line_of(node)}]]}]
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=[]):
                # A row that raises an exception leaves.
                self._check_left(handlers)
                return [made for one in (*body, *orelse) for made in self._statement(one)]
            case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.AnnAssign(target=ast.Name(), value=None):
                return []
        raise self._refuse(node, f"a statement `{type(node).__name__.lower()}`")

    def _check_left(self, nodes: Iterable[ast.AST | None]) -> None:
        harmful = left.find_harmful(nodes, set(self._code.co_varnames), self._object_or_none)
        if harmful is not None:
            raise self._refuse(harmful, f"`{ast.unparse(harmful)}` where an exception is raised or caught")

    def _object_or_none(self, node: ast.expr) -> Any:
        try:
            return self._object(node)
        except Untranslatable:
            return None

    def _assign(self, target: ast.expr, value: ast.expr) -> list[Any]:
        match target, value:
            case ast.Name(id=name), _:
                return [{"assign": [self._local(target, name), self._expression(value)]}]
            case ast.Tuple(elts=[_, _]), ast.Call(args=[left, right], keywords=[]) if self._is_divmod(value):
                parts = (ast.BinOp(left, op, right) for op in (ast.FloorDiv(), ast.Mod()))
                both = ast.Tuple([ast.copy_location(part, value) for part in parts], ast.Load())
                return self._assign(target, both)
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                # All values are computed before the first is assigned.
                hidden = [f".{self._hidden + number}" for number in range(len(values))]
                self._hidden += len(values)
                made: list[Any] = [
                    {"assign": [name, self._expression(one)]} for name, one in zip(hidden, values)
                ]
                for one, name in zip(targets, hidden):
                    if not isinstance(one, ast.Name):
                        raise self._refuse(one, "an assignment to something else than a variable")
                    made.append(
                        {"assign": [self._local(one, one.id), [self._line_of(one), {"variable": name}]]}
                    )
                return made
        raise self._refuse(target, "an assignment to something else than a variable")

    def _local(self, node: ast.AST, name: str) -> str:
        if name not in self._code.co_varnames:
            raise self._refuse(node, f"an assignment to {name}, which is no variable of the function")
        return name

    def _expression(self, node: ast.expr) -> list[Any]:
        self._depth += 1
        if self._depth > _DEEPEST_EXPRESSION:
            raise self._refuse(node, "an expression that is nested too deeply")
        self._counter.expressions += 1
        if self._counter.expressions > _MOST_EXPRESSIONS:
            raise self._refuse(node, f"more than {_MOST_EXPRESSIONS} expressions")
        made = [self._line_of(node), self._node(node)]
        self._depth -= 1
        return made

    def _node(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return self._constant(node, value)
            case ast.Name(id=name) if name in self._code.co_varnames:
                return {"variable": name}
            case ast.Attribute(value=owner, attr=name) if not self._is_known(node):
                return {"attribute": [name, self._expression(owner)]}
            case ast.Name() | ast.Attribute():
                return self._constant(node, self._object(node))
            case ast.Tuple(elts=elements):
                return {"tuple": [self._expression(element) for element in elements]}
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return self._constant(node, -value)
            case ast.UnaryOp(op=op, operand=operand):
                return {"unary": [_OPERATORS[type(op)], self._expression(operand)]}
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
                return {"binary": [_OPERATORS[type(op)], self._expression(left), self._expression(right)]}
            case ast.BoolOp(op=op, values=values):
                kind = "and" if isinstance(op, ast.And) else "or"
                return {kind: [self._expression(value) for value in values]}
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                pairs = [[_OPERATORS[type(op)], self._right(op, one)] for op, one in zip(ops, comparators)]
                return {"compare": [self._expression(left), pairs]}
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return {"if": [self._expression(part) for part in (test, body, orelse)]}
            case ast.Call():
                return self._call(node)
            case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                bounds = [None if bound is None else self._expression(bound) for bound in (lower, upper)]
                return {"slice": [self._expression(value), *bounds]}
            case ast.Subscript(
                value=ast.Call(args=[left, right], keywords=[]) as call,
                slice=ast.Constant(value=0 | 1 as index),
            ) if self._is_divmod(call):
                return self._node(
                    ast.copy_location(ast.BinOp(left, (ast.FloorDiv(), ast.Mod())[index], right), node)
                )
            case ast.Subscript(value=value, slice=index) if not isinstance(index, ast.Slice):
                return {"index": [self._expression(value), self._expression(index)]}
            case ast.Dict(keys=keys, values=values):
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
                if len({name for name in names if type(name) is str}) < len(keys):
                    raise self._refuse(node, "a dict whose keys are no constant texts")
                return {"record": [[name, self._expression(one)] for name, one in zip(names, values)]}
            case ast.JoinedStr(values=values):
                return {"format": [self._part(value) for value in values]}
        raise self._refuse(node, f"an expression `{type(node).__name__.lower()}`")

    def _constant(self, node: ast.expr, value: Any) -> Any:
        if value is None:
            return "none"
        if type(value) is bool:
            return {"bool": value}
        if type(value) is int and -(1 << 63) <= value < 1 << 63:
            return {"int": value}
        if type(value) is float:
            (bits,) = struct.unpack("=Q", struct.pack("=d", value))
            return {"float": bits}
        if type(value) is str and _is_unicode(value):
            return {"text": value}
        if type(value) is datetime.date:
            return {"date": (value - _EPOCH.date()).days}
        if type(value) is datetime.datetime and value.tzinfo is None:
            return {"datetime": _microseconds(value - _EPOCH)}
        if type(value) is datetime.timedelta and -(1 << 63) <= _microseconds(value) < 1 << 63:
            return {"timedelta": _microseconds(value)}
        if type(value) in (tuple, frozenset, set, list, dict):
            return self._elements(node, value)
        kinds = {
            int: "an int beyond 64 bits",
            datetime.datetime: "a datetime with a zone",
            str: "a text that is not Unicode",
        }
        raise self._refuse(node, kinds.get(type(value), f"a value of type {type(value).__name__}"))

    def _elements(self, node: ast.expr, value: Any) -> Any:
        """What can be looked up: the elements of a tuple, set, list or dict."""
        most = _MOST_CONSTANTS[type(value)]
        if len(value) > most:
            raise self._refuse(node, f"a look-up in a {type(value).__name__} of more than {most:,}")
        # Each mention has its own memory.
        self._counter.constants += len(value)
        if self._counter.constants > _MOST_OF_ALL:
            raise self._refuse(node, f"look-ups in more than {_MOST_OF_ALL:,} constants")
        if type(value) in (set, list, dict):
            self.guards.append((_guest.Elements(value), "", True))
        constants = [[self._line_of(node), self._single(node, one)] for one in value]
        if type(value) is dict:
            return {
                "dict": [
                    constants,
                    [[self._line_of(node), self._single(node, one)] for one in value.values()],
                ]
            }
        return {"tuple" if type(value) in (tuple, list) else "set": constants}

    def _single(self, node: ast.expr, value: Any) -> Any:
        made = self._constant(node, value) if type(value) not in (tuple, frozenset, set, list, dict) else None
        if made is None:
            raise self._refuse(node, f"a look-up in which a value is a {type(value).__name__}")
        return made

    def _right(self, op: ast.cmpop, node: ast.expr) -> list[Any]:
        """The right side of a comparison: behind `in`, a set or a list of constants, too."""
        match op, node:
            case ast.In() | ast.NotIn(), ast.Set(elts=elements) | ast.List(elts=elements):
                return [self._line_of(node), {"set": [self._expression(element) for element in elements]}]
        return self._expression(node)

    def _part(self, node: ast.expr) -> list[Any]:
        match node:
            case ast.FormattedValue(value=value, conversion=-1 | 115 as conversion, format_spec=spec):
                if spec is None:
                    return self._expression(value)
                if conversion == -1 and isinstance(spec, ast.JoinedStr):
                    texts = [one.value for one in spec.values if isinstance(one, ast.Constant)]
                    if len(texts) == len(spec.values):
                        return self._formatted(node, value, "".join(texts))
            case ast.Constant():
                return self._expression(node)
        raise self._refuse(node, "a conversion, or a format that is no constant, in an f-string")

    def _formatted(self, node: ast.expr, value: ast.expr, spec: str) -> list[Any]:
        if not _is_unicode(spec):
            raise self._refuse(node, "a format that is not Unicode")
        # A date has the formats of `strftime`.
        self._guard_calendar()
        return [
            self._line_of(node),
            {"call": ["format", [self._expression(value), [self._line_of(node), {"text": spec}]]]},
        ]

    def _call(self, node: ast.Call) -> Any:
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            raise self._refuse(node, "a call with *arguments")
        kind, what = self._callee(node)
        match what, node.args:
            case ["join", separator], [ast.List(elts=parts) | ast.Tuple(elts=parts)] if not node.keywords:
                return {"join": [separator, [self._expression(part) for part in parts]]}
            case ["replace", of], [] if node.keywords:
                fields = [[one.arg, self._expression(one.value)] for one in node.keywords if one.arg]
                if len(fields) == len(node.keywords):
                    return {"replaced": [of, fields]}
            case [type() as class_], _:
                return {kind: self._record(node, class_)}
            case [str(name)], _ if name in _PARAMETERS:
                return {kind: [name, self._arguments(node, name)]}
        if node.keywords:
            raise self._refuse(node, "a call with keywords")
        if what[0] in ("strftime", "format"):
            self._guard_calendar()
        return {kind: [*what, [self._expression(argument) for argument in node.args]]}

    def _guard_calendar(self) -> None:
        """Dates are written and read by functions of Python that a program could replace."""
        import _strptime

        self._guarded(time, "strftime")
        self._guarded(_strptime, "_strptime_datetime")

    def _arguments(self, node: ast.Call, name: str) -> list[Any]:
        """All arguments of a class of `datetime`. One that is not given is 0."""
        names = _PARAMETERS[name]
        given = dict(zip(names, node.args)) | {one.arg: one.value for one in node.keywords if one.arg}
        count = len(node.args) + len(node.keywords)
        if len(given) != count or not set(given) <= set(names):
            raise self._refuse(node, f"a call of {name} with such arguments")
        if name != "timedelta" and not set(names[:3]) <= set(given):
            raise self._refuse(node, f"a call of {name} without a day")
        zero = [self._line_of(node), {"int": 0}]
        return [self._expression(given[one]) if one in given else zero for one in names]

    def _record(self, node: ast.Call, class_: type) -> list[list[Any]]:
        """The names and values of a new object."""
        record = guards.Record.of(class_)
        if record is None:
            raise self._refuse(node, f"a call of {class_.__name__}, which is more than its fields")
        given = dict(zip(record.fields, node.args)) | {one.arg: one.value for one in node.keywords if one.arg}
        if len(given) != len(node.args) + len(node.keywords) or not set(given) <= set(record.fields):
            raise self._refuse(node, f"a call of {class_.__name__} with such arguments")
        self.guards += record.guards
        values = []
        for name, default in record.fields.items():
            if name in given:
                values.append([name, self._expression(given[name])])
            elif default is guards.ABSENT:
                raise self._refuse(node, f"a call of {class_.__name__} without {name}")
            else:
                values.append([name, [self._line_of(node), self._single(node, default)]])
        return values

    def _is_divmod(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="divmod") as name) if name.id not in self._code.co_varnames:
                return self._object(name) is divmod
        return False

    def _callee(self, node: ast.Call) -> tuple[str, list[Any]]:
        """The kind of a call, and what is called."""
        match node.func:
            case ast.Attribute(value=owner, attr=name) if not self._is_known(node.func):
                if self._is_global(owner):
                    class_ = _KNOWN.get(id(self._object(owner)))
                    if f"{class_}.{name}" in _CLASS_METHODS:
                        self._guard_calendar()
                        return "call", [f"{class_}.{name}"]
                    if class_:
                        raise self._refuse(node, f"a call of {ast.unparse(node.func)}")
                return "method", [name, self._expression(owner)]
            case ast.Name() | ast.Attribute():
                called = self._object(node.func)
                if id(called) in _KNOWN:
                    return "call", [_KNOWN[id(called)]]
                if type(called) is FunctionType:
                    return "inline", [self._inner(node, called)]
                if type(called) is type:
                    return "record", [called]
        raise self._refuse(node, f"a call of {ast.unparse(node.func)}")

    def _inner(self, node: ast.Call, function: FunctionType) -> dict[str, Any]:
        """The source of a function that is called, with constants in place of its own globals."""
        if function in self._outer or len(self._outer) > _DEEPEST:
            raise self._refuse(node, f"a call of {function.__name__}, which calls itself")
        if len(node.args) != function.__code__.co_argcount:
            raise self._refuse(node, f"a call of {function.__name__} with such arguments")
        is_here = self._line is None and function.__code__.co_filename == self._code.co_filename
        line = None if is_here else self._line or node.lineno
        inner = Translator(function, self._sources, self._outer, self._counter, line)
        source = inner.source()
        self.guards += inner.guards
        return source

    def _is_global(self, node: ast.expr) -> bool:
        """Whether this is a variable outside of the function, or an attribute of one."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id not in self._code.co_varnames

    def _is_known(self, node: ast.Attribute) -> bool:
        """Whether this is an attribute of a module, or one that an object or a class outside has."""
        if not self._is_global(node.value):
            return False
        owner = self._object(node.value)
        return type(owner) is ModuleType or guards.Holder.of(owner, node.attr) is not None

    def _object(self, node: ast.expr) -> Any:
        """What a global variable, or an attribute of a module, is. It becomes a guard."""
        match node:
            case ast.Name(id=name) if name not in self._code.co_varnames:
                return self._named(node, name)
            case ast.Attribute(value=owner, attr=name) if self._is_global(owner):
                place = self._object(owner)
                if type(place) is not ModuleType:
                    place = guards.Holder.of(place, name)
                if place is None or guards.found(place, name) is guards.ABSENT:
                    raise self._refuse(node, f"the attribute {name} of something else than a module")
                return self._guarded(place, name)
        raise self._refuse(node, ast.unparse(node))

    def _named(self, node: ast.expr, name: str) -> Any:
        if name in self._cells:
            value = self._guarded(self._cells[name], name)
            if value is guards.ABSENT:
                raise self._refuse(node, f"the variable {name}, which has no value yet")
            return value
        own = self._function.__globals__
        if name in own:
            return self._guarded(own, name)
        if self._function.__builtins__ is not vars(builtins) or name not in vars(builtins):
            raise self._refuse(node, f"the variable {name}, which is not known")
        self._guarded(own, name)
        return self._guarded(vars(builtins), name)

    def _guarded(self, place: dict[str, Any] | ModuleType | CellType, name: str) -> Any:
        value = guards.found(place, name)
        self.guards.append((place, name, value))
        return value


def _microseconds(delta: datetime.timedelta) -> int:
    return delta // datetime.timedelta(microseconds=1)


def _is_unicode(text: str) -> bool:
    """Whether a text is UTF-8, without lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
