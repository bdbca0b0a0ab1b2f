"""Functions of one expression, compiled into the loop over a batch, because a call costs more than
most expressions.

The loop is made from the function's source, so that the compiler of any version of Python can make
it. The source counts only if it compiles to the very code of the function. A function is called as
usual if the loop would change its meaning:
if it binds names, makes functions, or looks at its own frame.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

#: The parameter of a loop, and the variable around it that gets the results. No identifier can have
#: these names.
_VALUES, _RESULT = ".values", ".result"
#: Functions that look at the frame in which they are called.
_INTROSPECTIVE = frozenset(
    {
        "__class__", "_getframe", "breakpoint", "currentframe", "dir", "eval", "exec", "extract_stack", "locals",
        "print_stack", "stack", "super", "vars",
    }
)  # fmt: skip
_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
#: The flags of *args, **kwargs, generators and coroutines.
_UNUSUAL = 0x04 | 0x08 | 0x20 | 0x80 | 0x200
_NESTED = 0x10
_MAKES_FUNCTIONS_OR_BINDS = (
    ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.NamedExpr,
    ast.Await, ast.Yield, ast.YieldFrom,
)  # fmt: skip

Node = ast.FunctionDef | ast.Lambda
#: Since Python 3.12.
_MONITORING = getattr(sys, "monitoring", None)


class File(NamedTuple):
    """What is known of a file."""

    #: The functions, by the first line of their code.
    functions: dict[int, list[Node]]
    #: The names that the module imports. The compiler calls their attributes in another way.
    imports: frozenset[str]


#: The files that were read.
Sources = dict[str, File]


#: Held while a function's source is read and compiled. CPython's parser has one counter of its
#: depth for all threads, and fails if another thread changes it.
_reading = threading.Lock()
os.register_at_fork(after_in_child=_reading._at_fork_reinit)  # type: ignore[attr-defined]

#: The file and the loop's code, by the function's code. A lane finds the loops that its zygote has
#: made.
_made: WeakKeyDictionary[CodeType, tuple[str, CodeType | None]] = WeakKeyDictionary()


def prepare(functions: Iterable[tuple[Any, int]], sources: Sources) -> None:
    """Makes loops for functions and numbers of parameters. Reads each file once."""
    for function, count in functions:
        _loop(function, count, sources)


def loop(
    function: Any, result: CellType, arguments: list[CellType]
) -> Callable[[Iterator[Any]], None] | None:
    """The loop of a function; None if the function must be called.

    The loop takes the first argument from an iterator and the others from their cells. It puts the
    result into its cell before it asks the iterator for the next row.
    """
    code = _loop(function, 1 + len(arguments), {})
    if code is None:
        return None
    own = function.__code__
    cells = dict(zip(own.co_freevars, function.__closure__ or ()))
    cells.update(zip(own.co_varnames[1:], arguments), **{_RESULT: result})
    closure = tuple(cells[name] for name in code.co_freevars)
    return FunctionType(code, function.__globals__, function.__name__, None, closure)


def is_watched() -> bool:
    """Whether a debugger, a profiler or a similar tool watches the calls of this thread."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return True
    return _MONITORING is not None and any(map(_MONITORING.get_tool, range(6)))


def source_of(code: CodeType, sources: Sources) -> Node | None:
    """The source of a function; None if it is not known, or if the function does unusual things."""
    if not may_loop(code):
        return None
    with _reading, contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        file = _file(code, sources)
        nodes = file.functions.get(code.co_firstlineno, [])
        return next((node for node in nodes if _is_source_of(node, code, file.imports)), None)
    return None


def _loop(function: Any, count: int, sources: Sources) -> CodeType | None:
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    # Code of two files may be equal, but its tracebacks are not.
    file, made = _made.get(code, (None, None))
    if file != code.co_filename:
        made = None
        if may_loop(code):
            # The function is called if its file is no valid Python, or too large for the compiler.
            # SystemError comes if another thread of the program parses something at the same time.
            with (
                _reading,
                contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError, SystemError),
            ):
                made = _compiled(code, sources)
        _made[code] = code.co_filename, made
    # A parameter that is not passed has a default, which the loop does not have.
    return made if count == code.co_argcount else None


def may_loop(code: CodeType) -> bool:
    """Whether a function may be inlined, by its code alone."""
    names = {*code.co_names, *code.co_freevars}
    return not (
        code.co_argcount == 0
        or code.co_flags & _UNUSUAL
        or code.co_kwonlyargcount
        or code.co_cellvars
        or names & _INTROSPECTIVE
        or any(isinstance(constant, CodeType) for constant in code.co_consts)
    )


def _compiled(code: CodeType, sources: Sources) -> CodeType | None:
    file = _file(code, sources)
    for node in file.functions.get(code.co_firstlineno, []):
        expression = node.body if isinstance(node, ast.Lambda) else _expression(_without_docstring(node.body))
        if (
            expression is not None
            and not any(isinstance(part, _MAKES_FUNCTIONS_OR_BINDS) for part in ast.walk(expression))
            and _is_source_of(node, code, file.imports)
        ):
            return _made_of(expression, code, file.imports)
    return None


def _file(code: CodeType, sources: Sources) -> File:
    """The file of a function."""
    name = code.co_filename
    if name not in sources:
        # A file that cannot be parsed is not parsed again.
        sources[name] = File({}, frozenset())
        sources[name] = _parsed(name)
    return sources[name]


def _parsed(file: str) -> File:
    linecache.checkcache(file)
    module = ast.parse("".join(linecache.getlines(file)))
    functions: dict[int, list[Node]] = {}
    for node in ast.walk(module):
        if isinstance(node, Node):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            functions.setdefault(first, []).append(node)
    return File(functions, frozenset(_imports(module)))


def _imports(node: ast.AST) -> Iterator[str]:
    """The names that a module imports outside of its functions and classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in child.names)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _imports(child)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if documented and isinstance(first.value.value, str) else body


def _expression(body: list[ast.stmt]) -> ast.expr | None:
    """Statements as one expression; None if they have other statements than `if` and `return`."""
    match body:
        case [ast.Return(value=ast.expr() as value), *_]:
            return value
        case [ast.If() as branch, *rest]:
            chosen, other = _expression(branch.body), _expression([*branch.orelse, *rest])
            if chosen is None or other is None:
                return None
            return ast.copy_location(ast.IfExp(branch.test, chosen, other), branch)
    return None


def _is_source_of(node: Node, code: CodeType, imports: frozenset[str]) -> bool:
    """Whether the code was compiled from this source, as far as the code tells."""
    statement = ast.copy_location(ast.Expr(node), node) if isinstance(node, ast.Lambda) else node
    for made in _within(statement, code, code.co_freevars, imports):
        same = made.replace(co_flags=made.co_flags & ~_NESTED | code.co_flags & _NESTED)
        if same == code and same.co_linetable == code.co_linetable and same.co_freevars == code.co_freevars:
            return True
    return False


def _made_of(expression: ast.expr, code: CodeType, imports: frozenset[str]) -> CodeType:
    first, *others = code.co_varnames[: code.co_argcount]
    (function,) = ast.parse("def each(): pass").body
    assert isinstance(function, ast.FunctionDef)
    function.args.args = [ast.arg(_VALUES)]
    assign = ast.Assign([ast.Name(_RESULT, ast.Store())], expression)
    rows = ast.For(ast.Name(first, ast.Store()), ast.Name(_VALUES, ast.Load()), [assign], [])
    function.body = [ast.Nonlocal([_RESULT]), rows]
    ast.fix_missing_locations(ast.copy_location(function, expression))
    (made,) = _within(function, code, (*code.co_freevars, *others, _RESULT), imports)
    return made.replace(co_name=code.co_name, co_qualname=code.co_qualname)


def _within(
    statement: ast.stmt, code: CodeType, variables: tuple[str, ...], imports: frozenset[str]
) -> list[CodeType]:
    """The functions in a statement, compiled inside a function with these variables."""
    used = sorted(imports.intersection(code.co_names))
    module = ast.parse("def around(): pass" + "".join(f"\nimport {name}" for name in used))
    around = module.body[0]
    assert isinstance(around, ast.FunctionDef)
    around.args.args = [ast.copy_location(ast.arg(name), around) for name in variables]
    around.body = [statement]
    if isinstance(statement, ast.FunctionDef) and statement.name not in variables:
        # The function's own name is a global variable, also if the function calls itself.
        around.body.insert(0, ast.copy_location(ast.Global([statement.name]), statement))
    compiled = compile(module, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True)
    (inside,) = (constant for constant in compiled.co_consts if isinstance(constant, CodeType))
    return [constant for constant in inside.co_consts if isinstance(constant, CodeType)]
