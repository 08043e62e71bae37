"""The settings files of one start: which are read, which documents of them count, and in what order they become layers.

Each file brings its documents for active profiles and the files of profiles beside it (``shared-prod.yaml``). What a
file imports (``boot.imports``) stands above it; what the settings file imports, above all files of profiles.

Source: Spring Boot 3 ``ConfigDataEnvironment``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from rocketbox.boot.imports import Import, circle_finding, import_location, imports_in, tree_items
from rocketbox.boot.layers import IMPORT, ConditionalDocument, Entry, Layer
from rocketbox.boot.origins import Origin, Raw, Scalar, file_label
from rocketbox.boot.placeholders import PlaceholderError
from rocketbox.boot.profile_expressions import profiles_in
from rocketbox.boot.profiles import profile_file, profiles_of_files
from rocketbox.boot.secrets import credentials_in, secrets_in
from rocketbox.boot.sources import FileLayer, Glance, Sources, file_layer
from rocketbox.errors import ConfigurationError, Finding

__all__ = ["SettingsFiles", "exposed_secrets", "idle_keys"]

MAX_IMPORTS = 100

_ONLY_PLACEHOLDERS = re.compile(r"(\$\{[^:{}]*:?\})*")


class SettingsFiles:
    """Reads files for the active profiles; ``paths`` are those that there were, directories of secrets included.

    ``profiles`` are those that a document or a file is for, active or not.
    """

    def __init__(self, sources: Sources, active: Sequence[str]) -> None:
        self.paths: list[Path] = []
        self.profiles: set[str] = set()
        self._sources = sources
        self._active = active
        self._imports = 0

    def of_file(self, file: Path, documents: Sequence[ConditionalDocument] | None = None) -> list[FileLayer]:
        """The layers of a file and of its profiles' files; ``documents`` are its own if they were read already."""
        if documents is None:
            documents = self._sources.read(file)
        self.paths.append(file)
        layers = [file_layer(file, documents, self._active, conditional=conditional) for conditional in (False, True)]
        self._note_profiles(documents)
        self.profiles.update(profiles_of_files(file))
        for name in self._active:
            beside = self._file_of(file, name)
            if beside is not None:
                self.paths.append(beside)
                documents = self._sources.read(beside)
                self._note_profiles(documents)
                layers += [
                    file_layer(beside, documents, self._active, conditional=conditional)
                    for conditional in (False, True)
                ]
        return layers

    def _note_profiles(self, documents: Iterable[ConditionalDocument]) -> None:
        for document in documents:
            self.profiles.update(profiles_in(document.on_profile))

    def _file_of(self, file: Path, profile: str) -> Path | None:
        try:
            return profile_file(file, profile)
        except ConfigurationError as error:
            self._sources.findings += error.findings
            return None

    def imported(self, layers: Sequence[FileLayer]) -> list[FileLayer]:
        """The layers that these import, then those that variables and arguments import, each with its own imports."""
        said = self._sources.glance(layers)
        found = self._of_layers(layers, said, ())
        entry = said.entries.get(IMPORT)
        if entry is not None:
            for scalar in imports_in(entry.raw, self._sources.findings):
                found += self._of_import(scalar, Path(), said, ())
        return found

    def _of_layers(self, layers: Sequence[FileLayer], said: Glance, chain: tuple[Path, ...]) -> list[FileLayer]:
        found: list[FileLayer] = []
        for layer in layers:
            for document in layer.documents:
                for scalar in document.imports:
                    assert layer.file is not None
                    own = dict.fromkeys(each.file for each in (layers[0], layer) if each.file is not None)
                    found += self._of_import(scalar, layer.file.parent, said, (*chain, *own))
        return found

    def _of_import(self, scalar: Scalar, beside: Path, said: Glance, chain: tuple[Path, ...]) -> list[FileLayer]:
        findings = self._sources.findings
        try:
            text = said.texts.of_scalar(scalar, "rocketbox.config.import")
        except PlaceholderError as error:
            findings.append(error.finding)
            return []
        self._imports += 1
        if self._imports > MAX_IMPORTS:
            if self._imports == MAX_IMPORTS + 1:
                what = f"there are more than {MAX_IMPORTS} imports"
                findings.append(Finding(what, str(scalar.origin), "import each file once"))
            return []
        each = import_location(text or "", scalar.origin, beside, findings)
        return [] if each is None else self._read(each, said, chain)

    def _read(self, each: Import, said: Glance, chain: tuple[Path, ...]) -> list[FileLayer]:
        sources = self._sources
        if each.is_tree:
            self.paths.append(each.path)
            items = tree_items(each.path, sources.findings, sources.warnings)
            return [FileLayer(file_label(each.path), (ConditionalDocument(tuple(items)),), each.path)]
        if each.path.resolve() in [file.resolve() for file in chain]:
            sources.findings.append(circle_finding(chain, each.path, each.where))
            return []
        layers = self.of_file(each.path)
        return layers + self._of_layers(layers, said, chain)


def idle_keys(layers: Iterable[Layer]) -> list[Finding]:
    """Keys about profiles and imports in layers that are read when both are known already."""
    return [
        Finding(
            f"{entry.key} has no effect here: profiles and imports are known before this is read",
            str(entry.origin),
            "write it in the settings file outside of documents for profiles, or as a variable or argument",
        )
        for layer in layers
        for path, entry in layer.entries.items()
        if path[:2] in (("rocketbox", "profiles"), ("rocketbox", "config"))
    ]


def exposed_secrets(entries: Iterable[Entry], files: Iterable[Path]) -> list[Finding]:
    """A warning for each of the files that holds a secret and that everybody on the machine may read.

    Directories of secrets do not count: who mounts them decides (Kubernetes makes all their files readable).
    """
    if os.name == "nt":  # modes say nothing there
        return []
    paths = {file_label(file): file for file in files}
    held: dict[str, dict[str, Origin]] = {}
    for entry in entries:
        found: list[Raw] = [*secrets_in(entry.path, entry.shape, entry.raw)]
        if isinstance(entry.raw, Scalar) and any(credentials_in(entry.raw.text or "")):
            found.append(entry.raw)
        for each in found:
            written = each.text if isinstance(each, Scalar) else None
            if each.origin.source in paths and written and not _ONLY_PLACEHOLDERS.fullmatch(written):
                held.setdefault(each.origin.source, {}).setdefault(entry.key, each.origin)
    return [
        Finding(
            f"{label} holds a secret ({', '.join(keys)}), and everybody on this machine may read it",
            str(next(iter(keys.values()))),
            f"chmod 600 {label}, or write ${{VARIABLE}} in place of it, or import a directory of secrets",
        )
        for label, keys in held.items()
        if paths[label].stat().st_mode & stat.S_IROTH
    ]
