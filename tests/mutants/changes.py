"""Sampled changes of a module: the operators of cosmic-ray, one change at a place, in an order that a seed decides.

Of cosmic-ray this takes its operators and nothing else: its own runner changes the working tree, starts a Python for
each mutant, and knows neither samples nor which test runs which line.

A change is left out where no test could notice it, or only a test of the text: annotations (they are never evaluated
here), imports for type checkers, the marks of abstract and overloaded methods, and the options of ``@dataclass``.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

from tests.mutants.packages import FIRST, Change, Package, WrittenChange

__all__ = ["changed_source", "changes_of_module", "find_change", "in_function", "sampled_changes"]

WRITTEN = "written"
# Each operator's nearest neighbour: a comparison that is wrong at its border, an operation turned round. (cosmic-ray
# has one for every pair; most of the others change so much that any test notices.)
OPERATORS = tuple(
    f"core/{name}"
    for name in (
        "ReplaceBinaryOperator_Add_Sub ReplaceBinaryOperator_Sub_Add ReplaceBinaryOperator_Mul_FloorDiv "
        "ReplaceBinaryOperator_Div_Mul ReplaceBinaryOperator_FloorDiv_Mul ReplaceBinaryOperator_Mod_FloorDiv "
        "ReplaceBinaryOperator_Pow_Mul ReplaceBinaryOperator_LShift_RShift ReplaceBinaryOperator_RShift_LShift "
        "ReplaceBinaryOperator_BitAnd_BitOr ReplaceBinaryOperator_BitOr_BitAnd ReplaceBinaryOperator_BitXor_BitOr "
        "ReplaceComparisonOperator_Lt_LtE ReplaceComparisonOperator_LtE_Lt ReplaceComparisonOperator_Gt_GtE "
        "ReplaceComparisonOperator_GtE_Gt ReplaceComparisonOperator_Eq_NotEq ReplaceComparisonOperator_NotEq_Eq "
        "ReplaceComparisonOperator_Is_IsNot ReplaceComparisonOperator_IsNot_Is "
        "ReplaceUnaryOperator_USub_UAdd ReplaceUnaryOperator_Delete_Not ReplaceUnaryOperator_Delete_Invert "
        "AddNot ReplaceTrueWithFalse ReplaceFalseWithTrue ReplaceAndWithOr ReplaceOrWithAnd "
        "ReplaceBreakWithContinue ReplaceContinueWithBreak ExceptionReplacer NumberReplacer RemoveDecorator "
        "ZeroIterationForLoop"
    ).split()
)

Place = tuple[int, int]  # line from 1, column from 0


def sampled_changes(root: Path, package: Package, seed: int) -> list[Change]:
    """All changes of the package, in the seed's order: those written by hand, then one for each place.

    The order hangs on the text of the line and not on its number: an edit elsewhere leaves the sample as it was.
    """
    written = [_written(root, change) for change in FIRST if change.package == package.name]
    at_places: dict[tuple[str, Place], Change] = {}
    for module in package.module_paths(root):
        for place, change in changes_of_module(root, module, seed):
            known = at_places.get((module, place))
            if known is None or change.rank < known.rank:
                at_places[module, place] = change
    return written + sorted(at_places.values(), key=lambda change: change.rank)


def changes_of_module(root: Path, module: str, seed: int) -> Iterator[tuple[Place, Change]]:
    """Every change of the module, with the place where it begins."""
    source = (root / module).read_text(encoding="utf-8")
    lines = source.split("\n")
    left_out = _left_out(source)
    nodes = list(ast_nodes(get_ast(source)))
    alike: Counter[tuple[str, str, int]] = Counter()
    for name in OPERATORS:
        operator = _operator(name)
        positions = ((start, end) for node in nodes for start, end in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(positions):
            if any(first <= start < last for first, last in left_out):
                continue
            line = lines[start[0] - 1].strip()
            alike[name, line, start[1]] += 1
            key = f"{seed}:{module}:{name}:{line}:{start[1]}:{alike[name, line, start[1]]}"
            rank = hashlib.sha256(key.encode()).hexdigest()
            yield start, Change(module, name, occurrence, start[0], end[0], rank)


def changed_source(root: Path, change: Change) -> str:
    """The module's text with the change."""
    source = (root / change.module).read_text(encoding="utf-8")
    if change.operator == WRITTEN:
        written = FIRST[change.occurrence]
        return source.replace(written.before, written.after)
    changed: str | None = mutate_code(source, _operator(change.operator), change.occurrence)
    if changed is None:
        raise ValueError(f"{change.id}: the module has no such place any more")
    return changed


def in_function(root: Path, change: Change) -> bool:
    """Whether the lines are in the body of a function, where a change does nothing before it is called."""
    tree = ast.parse((root / change.module).read_text(encoding="utf-8"))
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(body[0].lineno <= change.first and change.last <= (body[-1].end_lineno or 0) for body in bodies)


def find_change(root: Path, packages: Sequence[Package], said: str, seed: int) -> tuple[Package, Change]:
    """The change that its id names. Raises ValueError when there is none."""
    for package in packages:
        if (module := said.partition(":")[0]) not in package.module_paths(root):
            continue
        written = [_written(root, change) for change in FIRST if change.module == module]
        for change in [*written, *(change for _, change in changes_of_module(root, module, seed))]:
            if change.id == said:
                return package, change
    raise ValueError(f"there is no mutant {said}; one is said as module:operator:number, as the table prints it")


def _written(root: Path, written: WrittenChange) -> Change:
    source = (root / written.module).read_text(encoding="utf-8")
    if source.count(written.before) != 1:
        raise ValueError(f"{written.module} has not once what {written.name!r} changes: see tests/mutants/packages.py")
    line = source[: source.index(written.before)].count("\n") + 1
    return Change(written.module, WRITTEN, FIRST.index(written), line, line)


@cache
def _operator(name: str) -> Any:
    return get_operator(name)()


def _left_out(source: str) -> list[tuple[Place, Place]]:
    """Where nothing is changed, from and to before."""
    tree = ast.parse(source)
    nodes: list[ast.expr | ast.stmt] = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                nodes += [node.returns] if node.returns else []
                nodes += [each for each in node.decorator_list if ast.unparse(each) in ("abstractmethod", "overload")]
            case ast.arg(annotation=ast.expr() as annotation):
                nodes.append(annotation)
            case ast.AnnAssign():
                nodes.append(node.annotation)
            case ast.ClassDef():
                nodes += [each for each in node.decorator_list if ast.unparse(each).startswith("dataclass(")]
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                nodes.append(node)
    # From the @ of a decorator on, which ast leaves out.
    return [
        ((node.lineno, max(node.col_offset - 1, 0)), (node.end_lineno or 0, node.end_col_offset or 0)) for node in nodes
    ]
