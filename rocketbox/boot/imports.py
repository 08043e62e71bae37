"""``rocketbox.config.import``: further files and directories of secrets that settings bring in.

A document names them: ``shared.yaml``, ``optional:local.yaml``, ``configtree:/run/secrets``; relative paths begin at
the file that has the key, and at the working directory for a variable or argument. A directory has one file for each
key: ``bank.password`` or ``bank/password``. What it says is secret, and ``${...}`` in it is plain text.

Which layer of settings they become is decided in ``boot.files``.

Source: Spring Boot 3 ``spring.config.import`` and ``ConfigTreePropertySource``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rocketbox.boot.origins import Item, Listing, Origin, Raw, Ready, Scalar, file_label, split_key
from rocketbox.errors import Finding

__all__ = ["ConfigProperties", "Import", "circle_finding", "import_location", "imports_in", "tree_items"]

MAX_SECRET_BYTES = 1 << 20  # a file of a directory of secrets; Kubernetes' own limit for a whole secret
MAX_DEPTH = 10  # of directories in it; no link that leads back is followed for ever

_OPTIONAL = "optional:"
_TREE = "configtree:"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: C: is a drive


class ActivateProperties(BaseModel):
    """``rocketbox.config.activate``."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"))

    on_profile: list[str] = Field(default_factory=list, description="the document counts for these profiles only")

    @field_validator("on_profile")
    @classmethod
    def _of_a_document(cls, value: list[str]) -> list[str]:
        """Documents' own ones are taken out of them before, so this one came from a variable or an argument."""
        raise ValueError("it belongs to a document of a YAML file")


class ConfigProperties(BaseModel):
    """``rocketbox.config``: what documents of settings files say of themselves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    import_: list[str] = Field(
        default_factory=list,
        alias="import",
        description="further settings files and configtree: directories of secrets; optional: for those that may lack",
    )
    activate: ActivateProperties = Field(default_factory=ActivateProperties)


@dataclass(frozen=True)
class Import:
    """One import: the file or directory, how and where it was written."""

    path: Path
    is_tree: bool
    is_optional: bool
    written: str
    where: Origin


def imports_in(raw: Raw, findings: list[Finding]) -> Iterator[Scalar]:
    """The locations of a ``rocketbox.config.import``: one, several with commas, or a list."""
    for each in raw.items if isinstance(raw, Listing) else (raw,):
        if isinstance(each, Ready):
            for text in each.value if isinstance(each.value, list | tuple) else [each.value]:
                yield Scalar(str(text), each.origin)
        elif isinstance(each, Scalar):
            for part in (each.text or "").split(",") if not isinstance(raw, Listing) else [each.text or ""]:
                if part.strip():
                    yield Scalar(part.strip(), each.origin, each.plain, each.open_)
        else:
            what = "rocketbox.config.import is a list of files, and not a group of keys"
            findings.append(Finding(what, str(each.origin), "write rocketbox.config.import: [shared.yaml, ...]"))


def import_location(text: str, where: Origin, beside: Path, findings: list[Finding]) -> Import | None:
    """What a location means; None, and a finding, when it is none."""
    rest = text.removeprefix(_OPTIONAL)
    path = rest.removeprefix(_TREE).removeprefix("file:")
    is_tree = rest.startswith(_TREE)
    if not path or _SCHEME.match(path):
        what = f"rocketbox.config.import cannot read {text}"
        findings.append(Finding(what, str(where), "name a YAML file, or configtree: and a directory of secrets"))
        return None
    found = Import(Path(os.path.normpath(beside / path)), is_tree, rest != text, text, where)
    if found.path.is_dir() is is_tree and found.path.exists():
        return found
    if not found.path.exists():
        if not found.is_optional:
            kind = "directory" if is_tree else "file"
            fix = f"create it, correct the path, or write {_OPTIONAL}{text}"
            findings.append(Finding(f"the imported {kind} {file_label(found.path)} does not exist", str(where), fix))
        return None
    if is_tree:
        what, fix = f"{file_label(found.path)} is imported as a directory and is a file", "leave configtree: out"
    else:
        what, fix = f"{file_label(found.path)} is imported as a file and is a directory", f"write {_TREE}{path}"
    findings.append(Finding(what, str(where), fix))
    return None


def tree_items(directory: Path, findings: list[Finding], warnings: list[Finding]) -> list[Item]:
    """The keys of a directory of secrets, in the order of their names; names that begin with a dot do not count.

    One line end at the end of a file is left out, as editors and ``echo`` add it.
    """
    items: list[Item] = []
    try:
        files = sorted(_files(directory, ()))
    except OSError as error:
        label = file_label(Path(error.filename or directory))
        findings.append(Finding(f"{label} cannot be read: {error.strerror}", label, "let this user read it"))
        return []
    for parts, file in files:
        origin = Origin(file_label(file))
        text = _read_secret(file, origin, findings, warnings)
        if text is not None:
            items.append(Item(parts, (origin,) * len(parts), Scalar(text, origin, False, open_=False, secret=True)))
    return items


def _files(directory: Path, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Path]]:
    for entry in directory.iterdir():
        if entry.name.startswith("."):  # such as Kubernetes' ..data, to which the names beside it link
            continue
        parts = (*above, *split_key(entry.name))
        if entry.is_dir() and len(above) < MAX_DEPTH:
            yield from _files(entry, parts)
        elif entry.is_file():
            yield parts, entry


def _read_secret(file: Path, origin: Origin, findings: list[Finding], warnings: list[Finding]) -> str | None:
    try:
        if file.stat().st_size > MAX_SECRET_BYTES:
            what = f"{origin} has more than {MAX_SECRET_BYTES >> 20} MB and is left out"
            warnings.append(Finding(what, str(origin), "keep only values in a directory of secrets"))
            return None
        text = file.read_bytes().decode()
    except UnicodeDecodeError:  # a key store beside passwords is no mistake
        what = f"{origin} is not UTF-8 and is left out"
        warnings.append(Finding(what, str(origin), "read it by its path, not as a setting"))
        return None
    except OSError as error:
        findings.append(Finding(f"{origin} cannot be read: {error.strerror}", str(origin), "let this user read it"))
        return None
    return text.removesuffix("\n").removesuffix("\r")


def circle_finding(chain: Sequence[Path], again: Path, where: Origin) -> Finding:
    """The finding for a file that imports itself through others."""
    names = [file_label(file) for file in chain[[file.resolve() for file in chain].index(again.resolve()) :]]
    what = f"imports go in a circle: {' -> '.join((*names, file_label(again)))}"
    return Finding(what, str(where), "take one of these imports out")
