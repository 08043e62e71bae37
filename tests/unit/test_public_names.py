"""The names of ``rocketbox`` itself: type checkers and the interpreter see the same ones."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rocketbox


def test_type_checkers_see_the_names_that_are_exported() -> None:
    (guarded,) = (node for node in ast.parse(inspect.getsource(rocketbox)).body if isinstance(node, ast.If))
    seen = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(rocketbox.__all__)


@pytest.mark.parametrize("name", rocketbox.__all__)
def test_every_name_is_there_when_it_is_used(name: str) -> None:
    assert getattr(rocketbox, name).__name__ == name


def test_all_names_can_be_imported_together_without_spark() -> None:
    script = "import sys; sys.modules['pyspark'] = None\nfrom rocketbox import *\nprint(RocketBox, SparkBatch)"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RocketBocks'"):
        _ = rocketbox.RocketBocks


def test_a_module_of_listeners_loads_no_library_of_the_framework() -> None:
    script = (
        "import sys; from rocketbox import rocketmq_listener, send_to, bean, Header, MessageExt, Reject, on_property\n"
        "print('\\n'.join(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    heavy = {"pydantic", "pydantic_settings", "dependency_injector", "typer", "asyncio", "anyio", "pyspark", "yaml"}
    assert heavy.isdisjoint(name.partition(".")[0] for name in loaded)


def test_a_service_with_servers_elsewhere_loads_neither_broker_nor_commands_nor_spark(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(
        "import sys\n"
        "from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener\n"
        "app = RocketBox('desk', scan=[__name__])\n"
        "@rocketmq_listener(topic='departures', consumer_group='desk')\n"
        "async def on_departure(text: str, template: RocketMQTemplate) -> None: ...\n"
        "if __name__ == '__main__':\n"
        "    app.check(arguments=['--rocketmq.name-server=ns:9876', '--rocketmq.producer.group=desk'])\n"
        "    print('\\n'.join(sys.modules))\n"
    )
    run = subprocess.run([sys.executable, "desk.py"], cwd=tmp_path, check=True, capture_output=True, text=True)
    loaded = set(run.stdout.split())
    unneeded = {"typer", "pyspark", "rocketbox.broker", "rocketbox.nameserver", "rocketbox.embedded", "rocketbox.cli"}
    assert "rocketbox.client" in loaded
    assert unneeded.isdisjoint(loaded)
