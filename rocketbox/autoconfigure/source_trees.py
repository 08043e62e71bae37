"""The source of modules as trees, one at a time: Python 3.11's parser fails where several threads make trees at once.

``SystemError: AST constructor recursion depth mismatch`` is what it says then; it concerns services that start or are
looked at in threads, as two backgrounds of one process are.
"""

from __future__ import annotations

import ast
import threading
from pathlib import Path

__all__ = ["source_tree"]

_one_at_a_time = threading.Lock()


def source_tree(file: str | Path) -> ast.Module | None:
    """The tree of a file of source; None where there is none, or it cannot be read, so that nothing is known of it."""
    try:
        source = Path(file).read_bytes()
        with _one_at_a_time:
            return ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, SystemError):  # others may make trees at the same time
        return None
