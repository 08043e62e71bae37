"""The code in README and docs runs.

A page is one little project: blocks marked ``file=NAME`` are its files, written in their order; a block marked ``run``
is run then. Python blocks run as scripts. In console blocks each line after ``$`` is a command; the lines below it must
be printed by it, in any order: messages of different queues have none (``...`` stands for anything). ``rocketbox run``
is stopped by SIGTERM when its lines have come, or by SIGINT when those above a line ``^C`` have. A command must end
with status 0, or with that of ``status=1``. A block with ``needs=MODULE,MODULE`` runs where these are installed, as
they are by the extra ``dev``; where they are not, the page's test is skipped at its end, and says so.

A folder ``site`` of the page can be imported, and what is installed in it (``site/*.dist-info``) counts as installed.
All blocks of YAML must be YAML; a block with ``quote=FILE`` must stand in that file of the project.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import FENCE, PAGES

ROOT = Path(__file__).parents[2]
SECONDS = 280  # what hangs is ended; Spark starts slowly on a machine that does other work
CTRL_C = "^C"
WHOLE_LINES = Path(__file__).parent / "whole_lines"


@dataclass(frozen=True)
class Block:
    language: str
    options: dict[str, str]
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        options = dict(word.partition("=")[::2] for word in match[2].split())
        yield Block(match[1], options, match[3], text.count("\n", 0, match.start()) + 1)


def is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that it would be in
        return False


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """(command, the lines it must print)."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, [line for line in output.splitlines() if line.strip() and line.strip() != "..."]


def run_until(command: str, wanted: list[str], folder: Path, expected: int = 0) -> None:
    """Run the command; when all wanted lines have come, stop it if it is a service. It must end as expected."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "",
        "PYTEST_PLUGINS": "rocketbox.testing.plugin",  # where rocketbox is not installed, but found by its path
        "COLUMNS": "200",
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(WHOLE_LINES), str(ROOT)]),
        "ROCKETBOX_EMBEDDED_PORT": "0",  # free ports, for whatever else runs on this machine
        "ROCKETBOX_EMBEDDED_NAME_SERVER_PORT": "0",
    }
    process = subprocess.Popen(
        f"exec {command}",
        shell=True,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    is_service = command.startswith("rocketbox run") and not expected  # else it ends by itself
    assert process.stdout is not None
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    printed = []
    interrupt = wanted.index(CTRL_C) if CTRL_C in wanted else None
    missing, later = (list(wanted), []) if interrupt is None else (wanted[:interrupt], wanted[interrupt + 1 :])
    stopped = False
    try:
        for line in process.stdout:
            printed.append(line)
            found = next((text for text in missing if text.strip() in line), None)
            if found is not None:
                missing.remove(found)
            if not missing and is_service and not stopped:
                process.send_signal(signal.SIGTERM if interrupt is None else signal.SIGINT)
                missing, stopped = later, True
        status = process.wait()
    finally:
        watchdog.cancel()
        process.stdout.close()
    assert not missing, f"{command} did not print {missing}, but:\n{''.join(printed)}"
    assert status == expected, f"{command} ended with status {status}:\n{''.join(printed)}"


TALKS = """
import sys, threading

def log() -> None:
    while not done.is_set():
        sys.stderr.write("a line of a thread\\n")

done = threading.Event()
thread = threading.Thread(target=log)
thread.start()
for number in range(500):
    print("handled", number, "of them")
done.set()
thread.join()
"""


def test_a_line_of_several_pieces_is_not_torn_apart_by_what_a_thread_logs(tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    run_until(f"{sys.executable} talks.py", [f"handled {number} of them" for number in range(500)], tmp_path)


def starts_spark(page: Path) -> bool:
    """Whether a page's code does, which takes a Java process and ten seconds."""
    return any("spark" in block.text for block in blocks(page) if {"run", "file"} & {*block.options})


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.spark] if starts_spark(page) else []) for page in PAGES],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    missing: list[str] = []
    for block in blocks(page):
        lacks = [name for name in block.options.get("needs", "").split(",") if name and not is_installed(name)]
        if lacks:
            missing += [f"line {block.line} needs {', '.join(lacks)}"]
            continue
        if name := block.options.get("file"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(block.text)
        if "run" in block.options:
            if block.language == "console":
                for command, wanted in commands(block):
                    run_until(command, wanted, tmp_path, int(block.options.get("status", 0)))
            else:
                assert block.language == "python", f"{page}:{block.line}: cannot run {block.language}"
                script = tmp_path / "block.py"
                script.write_text(block.text)
                run_until(f"{sys.executable} block.py", [], tmp_path)
    if missing:
        pytest.skip(f"all but what is not installed has run: {'; '.join(missing)}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_python_and_yaml_is_used(page: Path) -> None:
    """Code nobody runs goes stale: each Python or YAML block is a file of the page, is run, or is a quotation."""
    idle = [
        f"{page.name}:{block.line}"
        for block in blocks(page)
        if block.language in {"python", "yaml"} and not block.options.keys() & {"file", "run", "quote"}
    ]
    assert idle == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_file_of_a_page_is_named_above_it(page: Path) -> None:
    """Where pages are shown, nobody sees what stands beside the fence of a block."""
    lines = page.read_text().splitlines()
    for block in blocks(page):
        before = "\n".join(lines[: block.line - 1])
        is_shown = before.rfind("<!--") <= before.rfind("-->")
        if is_shown and (name := block.options.get("file")):
            above = before.rstrip().rpartition("\n")[2]
            assert f"`{name}`" in above, f"{page.name}:{block.line}: write the name above the block, `{name}`:"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_quotations_are_true(page: Path) -> None:
    for block in blocks(page):
        if source := block.options.get("quote"):
            assert block.text in (ROOT / source).read_text(), f"{page.name}:{block.line} is not in {source}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_yaml_is_yaml(page: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml":
            documents = list(yaml.safe_load_all(block.text))
            assert documents, f"{page.name}:{block.line} is empty"
            assert all(isinstance(document, dict) for document in documents), f"{page.name}:{block.line} has no keys"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", FENCE.sub("", page.read_text())):
        if "://" in target:
            continue
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name}: {target} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
            assert anchor in map(anchor_of, headings), f"{page.name}: {target} has no heading {anchor}"


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_readme_leads_to_every_page() -> None:
    linked = {ROOT / target for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text())}
    assert [page.name for page in PAGES[1:] if page not in linked] == []
