"""Coroutines that nobody awaits, found in the source of handlers, hooks and beans: a bare ``template.send(...)``.

Such a call does nothing: Python makes a coroutine, and drops it. While messages are handled that fails the message
(``listeners.dispatch``); here it is found before the start, with its line, where what is called is surely a coroutine
function: by a parameter's type, by a module's names, by the annotations of a class. What is not known is not told.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from rocketbox.autoconfigure.source_trees import source_tree
from rocketbox.errors import Finding
from rocketbox.hints import hint_of, parameters_of, plain_function, resolve_hint, return_annotation
from rocketbox.loops import is_coroutine_function

__all__ = ["Suspect", "forgotten_awaits"]

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef
Functions = dict[tuple[str, int], AnyFunction]  # of a file, by name and first line, that of a decorator if it has one
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")  # whatever of these a node of the tree has
SHOWN = 80  # characters of a call


@dataclass(frozen=True)
class Suspect:
    """A function whose source is looked at; ``label`` names it. ``class_`` is whose method it is, if it is one.

    ``returns_to_us``: what it returns is handed to nobody who would await it.
    """

    label: str
    function: Any
    class_: type | None = None
    returns_to_us: bool = False


@dataclass(frozen=True)
class _Instance:
    """Some object of a class."""

    class_: Any


def forgotten_awaits(suspects: Iterable[Suspect]) -> list[Finding]:
    """A finding for each call of a coroutine function whose coroutine is dropped, or returned from an ``async def``."""
    sources: dict[str, Functions] = {}
    findings: dict[Finding, None] = {}
    for suspect in suspects:
        plain = plain_function(suspect.function)
        if not isinstance(plain, FunctionType):
            continue
        node = _source_of(plain, sources)
        if node is not None:
            findings.update(dict.fromkeys(_Reader(suspect, plain, node).findings()))
    return list(findings)


def _source_of(function: FunctionType, sources: dict[str, Functions]) -> AnyFunction | None:
    code = function.__code__
    if code.co_filename not in sources:
        sources[code.co_filename] = _functions_in(code.co_filename)
    return sources[code.co_filename].get((code.co_name, code.co_firstlineno))


def _functions_in(file: str) -> Functions:
    tree = source_tree(file)  # it may no longer be that which was imported
    found: Functions = {}
    waiting: list[ast.AST] = [] if tree is None else [tree]
    while waiting:
        each = waiting.pop()
        for block in BLOCKS:  # of statements alone: functions are in no expression
            waiting += getattr(each, block, ())
        if isinstance(each, AnyFunction):
            first = min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)])
            found.setdefault((each.name, first), each)
    return found


@dataclass
class _Reader:
    """Reads the source of one function, knowing what its names stand for."""

    suspect: Suspect
    function: FunctionType
    node: AnyFunction
    known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for parameter in parameters_of(self.function):
            try:
                self.known[parameter.name] = _instance_of(hint_of(self.function, parameter))
            except Exception:  # resolving a hint can raise anything; then it is not known
                self.known[parameter.name] = None
        parameters = [*self.node.args.posonlyargs, *self.node.args.args]
        if self.suspect.class_ is not None and parameters and not _is_static(self.node):
            self.known[parameters[0].arg] = _Instance(self.suspect.class_)

    def findings(self) -> Iterator[Finding]:
        is_async = isinstance(self.node, ast.AsyncFunctionDef)
        function = getattr(self.suspect.function, "__func__", self.suspect.function)
        plain = plain_function(function) is function  # a decorator may await what comes back
        for statement, names in _statements(self.node, self.known):
            call = getattr(statement, "value", None)
            if not isinstance(call, ast.Call):
                continue
            if isinstance(statement, ast.Expr):
                dropped = True
            elif isinstance(statement, ast.Return) and is_async and plain and self.suspect.returns_to_us:
                dropped = False
            else:
                continue
            if not _is_coroutine_function(self.thing(call.func, names)):
                continue
            what = ast.unparse(call.func)
            text = ast.unparse(call)
            text = text if len(text) <= SHOWN else f"{what}(...)"
            fix = f"write {'' if dropped else 'return '}await {text}"
            if not is_async:
                fix = f"declare it with async def, and {fix}"
            done = "does not await" if dropped else "returns, and does not await,"
            file = self.function.__code__.co_filename.removeprefix(os.getcwd() + os.sep)
            yield Finding(f"{self.suspect.label} {done} {what}(...), which never runs so", f"{file}:{call.lineno}", fix)

    def thing(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """What an expression stands for: an object, or an _Instance of a class; None when that is not known."""
        if isinstance(node, ast.Name):
            if node.id in names:
                return names[node.id]
            if node.id in self.function.__code__.co_freevars or hasattr(builtins, node.id):
                return None
            return self.function.__globals__.get(node.id)
        if isinstance(node, ast.Attribute):
            return _attribute(self.thing(node.value, names), node.attr)
        return None


def _statements(node: AnyFunction, known: dict[str, Any]) -> Iterator[tuple[ast.stmt, dict[str, Any]]]:
    """The statements of a function and of those inside of it that are not behind a name of their own.

    What is assigned somewhere in a function is not known in it, nor is what its class is looked at.
    """
    names = {**known, **dict.fromkeys(_assigned(node))}
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, AnyFunction):
            arguments = each.args
            own = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            inner = {**names, **{argument.arg: None for argument in own if argument is not None}}
            # What an inner function returns goes to whoever calls it, so only what it drops is looked at.
            yield from ((inside, also) for inside, also in _statements(each, inner) if isinstance(inside, ast.Expr))
            continue
        if isinstance(each, ast.ClassDef | ast.Lambda):
            continue
        if isinstance(each, ast.stmt):
            yield each, names
        waiting = [*ast.iter_child_nodes(each), *waiting]


def _assigned(node: AnyFunction) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
            yield each.id
        elif isinstance(each, ast.alias):
            yield (each.asname or each.name).partition(".")[0]
        elif isinstance(each, AnyFunction | ast.ClassDef) and each is not node:
            yield each.name
        elif isinstance(each, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            yield each.name or ""
        elif isinstance(each, ast.MatchMapping):
            yield each.rest or ""
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "isinstance":
            # A subclass may do by a def what its base does by an async def.
            yield from (argument.id for argument in each.args[:1] if isinstance(argument, ast.Name))


def _is_static(node: AnyFunction) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)


def _instance_of(hint: Any) -> _Instance | None:
    """An object of the class that a hint means: ``T``, ``Annotated[T, ...]``, ``T | None``."""
    if typing.get_origin(hint) is typing.Annotated:
        return _instance_of(typing.get_args(hint)[0])
    members = [each for each in typing.get_args(hint) if each is not type(None)]
    if type(None) in typing.get_args(hint) and len(members) == 1:
        return _instance_of(members[0])
    kind = typing.get_origin(hint) or hint
    return _Instance(kind) if isinstance(kind, type) else None


def _attribute(of: Any, name: str) -> Any:
    if isinstance(of, ModuleType):
        return vars(of).get(name)
    class_ = of.class_ if isinstance(of, _Instance) else type(of)
    found = inspect.getattr_static(of if isinstance(of, type) else class_, name, None) if of is not None else None
    if isinstance(found, property) and found.fget is not None and not isinstance(of, type):
        return _made_by(found.fget)
    if isinstance(found, staticmethod | classmethod):
        return found.__func__
    if isinstance(found, FunctionType):
        return None if isinstance(of, _Instance) and _is_replaced(of.class_, name) else found
    return None if of is None or isinstance(of, type) else _annotated(class_, name)


def _is_replaced(class_: type, method: str) -> bool:
    """Whether a constructor gives each object something else in the place of a method."""
    constructors = [vars(base).get("__init__") for base in class_.__mro__]
    nodes = [
        _source_of(each, {})
        for each in constructors
        if isinstance(each, FunctionType) and method in _names_in(each.__code__)  # else no source need be read
    ]
    return any(
        isinstance(each, ast.Attribute) and each.attr == method and isinstance(each.ctx, ast.Store)
        for node in nodes
        if node is not None
        for each in ast.walk(node)
    )


def _names_in(code: CodeType) -> set[str]:
    """The names of attributes and globals that a function uses, and those inside of it."""
    inner = [_names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names}.union(*inner)


def _made_by(function: Any) -> _Instance | None:
    try:
        return _instance_of(resolve_hint(function, return_annotation(function)))
    except Exception:  # as above
        return None


def _annotated(class_: type, name: str) -> _Instance | None:
    """What an attribute is by the annotations of its class, or of its constructor where it only keeps a parameter."""
    for base in class_.__mro__:
        annotations = vars(base).get("__annotations__")  # a type of Python's own may have a descriptor of that name
        annotation = annotations.get(name) if isinstance(annotations, dict) else None
        if annotation is not None:
            try:
                return _instance_of(resolve_hint(base, annotation))
            except Exception:  # as above
                return None
        constructor = vars(base).get("__init__")
        if isinstance(constructor, FunctionType):
            return _kept(constructor, name)
    return None


def _kept(constructor: FunctionType, name: str) -> _Instance | None:
    node = _source_of(constructor, {})
    if node is None:
        return None
    found = [
        each
        for each in ast.walk(node)
        if isinstance(each, ast.Assign | ast.AnnAssign)
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
        if isinstance(target, ast.Attribute) and target.attr == name
    ]
    if len(found) != 1 or not isinstance(found[0].value, ast.Name):
        return None
    for parameter in parameters_of(constructor):
        if parameter.name == found[0].value.id:
            try:
                return _instance_of(hint_of(constructor, parameter))
            except Exception:  # as above
                return None
    return None


def _is_coroutine_function(thing: Any) -> bool:
    return isinstance(thing, FunctionType) and is_coroutine_function(thing)
