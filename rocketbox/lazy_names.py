"""Names of a package that are loaded when they are first used (PEP 562): importing the package costs next to nothing.

What type checkers see stands in the package itself, below ``if TYPE_CHECKING``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    namespace: dict[str, Any], homes: Mapping[str, str], *, others: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, whose ``globals()`` are given, ``__all__`` among them.

    ``homes`` holds by module, as the package calls it, its names with spaces between them. What else ``__all__`` names
    is in the module ``others``.
    """
    package = namespace["__name__"]
    home_of = dict.fromkeys(namespace["__all__"], others) | {
        name: home for home, names in homes.items() for name in names.split()
    }

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home_of[name]}"), name)
        namespace[name] = value  # the next use finds it without coming here
        return value

    def names() -> list[str]:
        return sorted({*namespace, *home_of})

    return load, names
