"""A few broken builds are noticed by their tests; ``make mutants`` tries all of them."""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import try_mutant  # it fills the table
from tests.mutants.table import MUTANTS, Mutant

QUICK = (
    "no fsync",
    "cut in the middle",
    "table written in place",
    "dispatch sends nothing on",
    "retries are not sent back",
)


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.name in QUICK], ids=lambda mutant: mutant.name)
def test_a_broken_build_turns_its_test_red(mutant: Mutant) -> None:
    result, output = try_mutant(mutant)
    assert result == "killed", output


def test_each_broken_build_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 26
