"""Which file holds the settings of a service: the one that is named, or the first that is found.

What is in it is read in ``boot.yaml_documents``; its documents and the files beside it are ``boot.files``' business.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rocketbox.boot.profiles import one_of_yaml
from rocketbox.errors import ConfigurationError, Finding

__all__ = ["find_settings_file"]

FILE_NAMES = ("rocketbox.yaml", "config/rocketbox.yaml")
FILE_VARIABLE = "ROCKETBOX_CONFIG"


def find_settings_file(
    config: Path | str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    beside: Path | None = None,
) -> Path | None:
    """The settings file: ``config``, else ``$ROCKETBOX_CONFIG``, else in ``directory``, else beside a module's file.

    It may end in ``.yml``. None when there is none and none was named; ConfigurationError when the one that was named
    does not exist, and where there are both.
    """
    variables = os.environ if environ is None else environ
    here = Path.cwd() if directory is None else directory
    for named, where in ((config, "--config or config="), (variables.get(FILE_VARIABLE), FILE_VARIABLE)):
        if named:
            file = here / named
            if file.exists():
                return file
            finding = Finding(f"the settings file {named} does not exist", where, "name a YAML file that exists")
            raise ConfigurationError(finding)
    candidates = [here / name for name in FILE_NAMES]
    if beside is not None:
        candidates.append(beside.parent / FILE_NAMES[0])
    return next((found for place in candidates if (found := one_of_yaml(place)) is not None), None)
