"""The pages that tests look at, and where code stands in them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["FENCE", "PAGES"]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
