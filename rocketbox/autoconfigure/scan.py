"""Looking for marked functions and classes in a user's modules, and for marked methods of beans.

There is no global registry: an application has what is defined in the modules that it scans, and nothing else. A name
that a module imports from elsewhere does not count there. But a bean has all methods of its class, and so all marked
ones, whoever wrote the class or a base of it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import traceback
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rocketbox.errors import SHOW_TRACEBACK, ConfigurationError, Finding
from rocketbox.hints import place_of

__all__ = [
    "Marked",
    "being_imported",
    "home_of",
    "import_finding",
    "listeners_in",
    "load_modules",
    "marked_in",
]

UNCHANGING = ("builtins", "pydantic", "rocketbox")
"""Packages whose classes nobody marks anything in later on: they are looked through once."""

SPARK_LIBRARIES = ("pyspark", "pyarrow", "pandas")


@dataclass(frozen=True)
class Marked:
    """An object with marks; for a marked method, ``owner`` is the hint of the bean that it is called on.

    ``name`` is that under which a method stands in its class.
    """

    target: Any
    marks: tuple[object, ...]
    owner: Any = None
    name: str = ""


def home_of(name: str) -> str:
    """The name of the module that is called ``name`` while it runs.

    What ``python -m shop.app`` runs is ``shop.app``: it is made known by that name, too, for whoever imports it would
    have a second one, with other classes and another application.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if name != "__main__" or spec is None or spec.name == "__main__":
        return name
    main = sys.modules["__main__"]
    if sys.modules.setdefault(spec.name, main) is main and spec.parent in sys.modules:
        setattr(sys.modules[spec.parent], spec.name.rpartition(".")[2], main)
    return str(spec.name)


def load_modules(home: str, scan: Iterable[str] | None) -> list[ModuleType]:
    """The modules to look at: ``scan`` and all below it, else the package of the module ``home``, else that module.

    Raises ConfigurationError for a module that cannot be imported, naming the line that failed.
    """
    _check_home(home)
    names = list(scan) if scan is not None else _home_package(home)
    modules: dict[str, ModuleType] = {}
    for name in names:
        for found in _with_submodules(name, home):
            modules[found.__name__] = found
    return list(modules.values())


def _check_home(home: str) -> None:
    """Refuse a program that was imported before it made its application: there are two of its classes then."""
    main, module = sys.modules.get("__main__"), sys.modules.get(home)
    spec = getattr(main, "__spec__", None)
    if home != "__main__" and spec is not None and spec.name == home and module is not main:
        fix = f"start it by rocketbox run {home}:app, or make the RocketBox before other modules are imported"
        what = f"{home} runs as a program, and another module has imported it a second time"
        raise ConfigurationError(Finding(what, getattr(main, "__file__", None), fix))


def being_imported(home: str, scan: Iterable[str] | None) -> str | None:
    """The module, of those that :func:`load_modules` would look at, that Python is about to import; None for none."""
    names = list(scan) if scan is not None else _home_package(home)
    for name, module in list(sys.modules.items()):
        is_importing = getattr(getattr(module, "__spec__", None), "_initializing", False)  # as importlib itself asks
        if is_importing and any(name == each or name.startswith(f"{each}.") for each in names):
            return name
    return None


def _home_package(home: str) -> list[str]:
    if home == "__main__":
        return [home]
    module = sys.modules[home]
    return [home if hasattr(module, "__path__") else home.rpartition(".")[0] or home]


def _with_submodules(name: str, home: str) -> Iterator[ModuleType]:
    module = _load(name)
    yield module
    if not hasattr(module, "__path__"):
        return
    for info in pkgutil.iter_modules(module.__path__, f"{name}."):
        if info.name.endswith(".__main__") and info.name != home:  # a program: running it is not looking at it
            continue
        if info.ispkg:
            yield from _with_submodules(info.name, home)
        else:
            yield _load(info.name)


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # a module that ends the process would end it without a word
        raise ConfigurationError(import_finding(name, error)) from error


def import_finding(name: str, error: BaseException) -> Finding:
    """What was wrong with importing a module: the line that failed, and what would mend it."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if not _is_machinery(frame.filename)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else name
    if isinstance(error, TypeError | ValueError) and frames and every[-1].filename.startswith(_OWN_FOLDER):
        return Finding(str(error), where, "correct that line")  # what a mark says of its use needs no more words
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else None
    if missing in SPARK_LIBRARIES:
        fix = "install Spark's part: pip install 'rocketbox[spark]'"
    elif missing and missing == name.partition(".")[0]:
        fix = f"start in the folder that holds {missing}, install it, or correct its name"
    elif missing:
        fix = f"install the package that has the module {missing}, or correct the import"
    elif isinstance(error, SyntaxError):
        fix = "correct that line"
    else:
        fix = f"importing a module must work without side effects; {SHOW_TRACEBACK}"
    return Finding(f"module {name} cannot be imported: {type(error).__name__}: {error}", where, fix)


_OWN_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"


def _is_machinery(filename: str) -> bool:
    return filename.startswith(("<frozen", _OWN_FOLDER)) or filename == importlib.__file__


def marked_in(modules: Iterable[ModuleType], attribute: str) -> Iterator[Marked]:
    """Every object defined in the modules that has marks under ``attribute``, each once, in the order of definition."""
    for target in _defined_in(modules):
        if marks := _own_marks(target, attribute):
            yield Marked(target, marks)
        if isinstance(target, type):
            for member in vars(target).values():
                if marks := _own_marks(member, attribute):
                    yield Marked(member, marks, owner=target)


def listeners_in(modules: Iterable[ModuleType], beans: Mapping[Any, Any], attribute: str) -> Iterator[Marked]:
    """Marked functions of the modules, and marked methods of ``beans``: hints to ask by, and the classes they are of.

    A method counts for each bean whose class has or inherits it; one that takes the place of a marked one is marked as
    that is. A static or class method needs no bean, nor does an object that is called as it is. A plain method of a
    class that no bean is of has that class as its owner, which the listener then misses; where a bean is of a base of
    the class, that needs a mark of its own, for the class may be that of the object which the base's factory makes.
    """
    classes = [(hint, typing.get_origin(provided) or provided) for hint, provided in beans.items()]
    told: set[tuple[int, type | None]] = set()
    for target in _defined_in(modules):
        if not isinstance(target, type):
            if marks := _own_marks(target, attribute):
                yield Marked(target, marks)
        elif not any(target in getattr(class_, "__mro__", ()) for _, class_ in classes):
            beans_above = [class_ for _, class_ in classes if class_ in target.__mro__]
            for marked in _marked_methods(target, target, attribute, told, inherited=False):
                is_of_bean = any(
                    marked.name in _marked_names(base, attribute) for above in beans_above for base in above.__mro__
                )
                if not is_of_bean or _own_marks(vars(target)[marked.name], attribute):
                    yield marked
    for hint, class_ in classes:
        if isinstance(class_, type):
            yield from _marked_methods(class_, hint, attribute, told)


def _marked_methods(
    class_: type, owner: Any, attribute: str, told: set[tuple[int, type | None]], *, inherited: bool = True
) -> Iterator[Marked]:
    marked = {name for base in class_.__mro__ for name in _marked_names(base, attribute)}
    if not marked:  # as mostly; the rest is slower
        return
    names = dict.fromkeys(
        name for base in (reversed(class_.__mro__) if inherited else (class_,)) for name in vars(base) if name in marked
    )
    for name in names:
        found = [vars(base)[name] for base in class_.__mro__ if name in vars(base)]
        member = found[0]
        marks = next((marks for each in found if (marks := _own_marks(each, attribute))), ())
        if not marks or member is None:  # on = None switches it off
            continue
        if not (callable(member) or hasattr(member, "__func__")):
            hides_one = any(_own_marks(each, attribute) for each in found[1:])
            if hides_one or not _is_another_way(member, class_, attribute):
                raise ConfigurationError(_no_method(class_, name, member, hides_one=hides_one))
            continue
        if not isinstance(member, staticmethod | classmethod) and hasattr(type(member), "__get__"):
            yield Marked(member, marks, owner, name)
            continue
        bound_to = class_ if isinstance(member, classmethod) else None
        if (id(member), bound_to) not in told:  # once, however many beans there are
            told.add((id(member), bound_to))
            yield Marked(getattr(class_, name), marks, name=name)


def _marked_names(class_: type, attribute: str) -> Iterable[str]:
    """The names of what is marked in a class itself."""
    if class_.__module__.partition(".")[0] in UNCHANGING:
        return _marked_names_there(class_, attribute)
    return [name for name, member in vars(class_).items() if _own_marks(member, attribute)]


@functools.cache
def _marked_names_there(class_: type, attribute: str) -> tuple[str, ...]:
    return tuple(name for name, member in vars(class_).items() if _own_marks(member, attribute))


def _no_method(class_: type, name: str, member: object, *, hides_one: bool) -> Finding:
    is_what = "stands in the place of a listener" if hides_one else "is marked as a listener"
    return Finding(
        f"{class_.__qualname__}.{name} {is_what}, and is a {type(member).__name__}",
        place_of(class_),
        "write a def in its place, which may call it"
        if hides_one
        else "write the mark above a def of the class, which may call it",
    )


def _defined_in(modules: Iterable[ModuleType]) -> Iterator[Any]:
    seen: set[int] = set()
    for module in modules:
        for name, target in list(vars(module).items()):
            # Of an object, such as a partial, it only says where its class stands: what was marked here counts here.
            elsewhere = isinstance(target, type) or inspect.isroutine(target)
            here = (
                not elsewhere
                or getattr(target, "__module__", None) == module.__name__
                or _is_made(target, name, module)
            )
            if here and id(target) not in seen:
                seen.add(id(target))
                yield target
                if isinstance(target, type):
                    yield from _classes_inside(target)


def _classes_inside(class_: type) -> Iterator[type]:
    for name, member in vars(class_).items():
        if isinstance(member, type) and member.__qualname__ == f"{class_.__qualname__}.{name}":
            yield member
            yield from _classes_inside(member)


def _is_made(target: Any, name: str, module: ModuleType) -> bool:
    """Whether a marked function was made by a call in the module: of a factory, or a decorator without ``wraps``.

    It says that it is of the module of who made it, where no name leads to it. What the source imports by ``name`` was
    made elsewhere.
    """
    file = getattr(module, "__file__", None)
    if not inspect.isfunction(target) or "<locals>" not in target.__qualname__ or not vars(target) or file is None:
        return False
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):  # no source: nothing is known
        return False
    imports = [(node, alias) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    return not any(
        _gives(node, module, name, target) if alias.name == "*" else (alias.asname or alias.name) == name
        for node, alias in imports
    )


def _gives(star: ast.ImportFrom, module: ModuleType, name: str, target: Any) -> bool:
    """Whether it is what ``from ... import *`` gives a module by that name."""
    base = importlib.util.resolve_name("." * star.level + (star.module or ""), module.__package__)
    return vars(sys.modules[base]).get(name) is target if base in sys.modules else False


def _own_marks(target: object, attribute: str) -> tuple[object, ...]:
    marks = _own_names(target).get(attribute)
    if marks is None and (inner := _function_in(target)) is not None:
        marks = _own_names(inner).get(attribute)
    if marks is None:
        return ()
    return marks if isinstance(marks, tuple) else (marks,)


def _function_in(target: object) -> object:
    """What stands inside of an object of a class that a decorator of Python's own makes of a function."""
    match target:
        case staticmethod() | classmethod():
            return target.__func__
        case property():
            return target.fget
        case functools.cached_property() | functools.partialmethod():
            return target.func
    return None


def _is_another_way(member: object, class_: type, attribute: str) -> bool:
    """Whether it has no marks itself, and what it calls is a method of the class under a name of its own."""
    inner = _function_in(member)
    return attribute not in _own_names(member) and any(
        inner is each for base in class_.__mro__ for each in vars(base).values()
    )


def _own_names(target: object) -> Mapping[str, Any]:
    """Its own ``__dict__`` only: objects that answer every attribute, and marks of a base class, do not count."""
    try:
        names: Mapping[str, Any] = object.__getattribute__(target, "__dict__")
    except AttributeError:
        return {}
    return names
