"""What is said of Spark outside of the application is found as Spark finds it, and is never overruled by a default."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from rocketbox.spark.session import settings_of
from rocketbox.spark.submitted import has_log_settings, said_outside

pytestmark = pytest.mark.spark

LOCAL_ONLY = {"spark.driver.host", "spark.driver.bindAddress", "spark.ui.enabled", "spark.sql.shuffle.partitions"}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A folder of Spark's own settings."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# of the cluster\n"
        "spark.master            spark://head:7077\n"
        "spark.executor.memory=8g\n"
        "spark.app.name: etl\n"
        "  spark.driver.extraJavaOptions   -Dkey=value -Dother=two words\n"
        "\n"
        "not.of.spark  true\n"
    )
    return tmp_path


def test_the_file_of_defaults_is_read(conf: Path) -> None:
    expected = {
        "spark.master": "spark://head:7077",
        "spark.executor.memory": "8g",
        "spark.app.name": "etl",
        "spark.driver.extraJavaOptions": "-Dkey=value -Dother=two words",
    }
    assert said_outside({"SPARK_CONF_DIR": str(conf)}) == expected
    (conf / "home").mkdir()
    conf.joinpath("spark-defaults.conf").rename(conf / "home" / "spark-defaults.conf")
    (conf / "home").rename(conf / "conf")
    assert said_outside({"SPARK_HOME": str(conf)}) == expected


def test_arguments_win_over_the_file_and_the_file_over_the_variable(conf: Path) -> None:
    environ = {"SPARK_CONF_DIR": str(conf), "MASTER": "local[7]"}
    assert said_outside(environ)["spark.master"] == "spark://head:7077"
    assert said_outside({"SPARK_CONF_DIR": str(conf / "none"), "MASTER": "local[7]"}) == {"spark.master": "local[7]"}
    for arguments in (
        "--master yarn pyspark-shell",
        "--master=yarn pyspark-shell",
        "--conf spark.master=yarn pyspark-shell",
        "-c spark.master=local --master yarn --conf 'spark.x=two words' pyspark-shell",
        "--conf=spark.master=yarn pyspark-shell",
    ):
        assert said_outside({**environ, "PYSPARK_SUBMIT_ARGS": arguments})["spark.master"] == "yarn"


def test_a_file_of_properties_stands_for_the_defaults(conf: Path) -> None:
    (conf / "other").write_text("spark.executor.memory 2g\nspark.x y")
    environ = {"SPARK_CONF_DIR": str(conf), "PYSPARK_SUBMIT_ARGS": f"--properties-file {conf}/other pyspark-shell"}
    assert said_outside(environ) == {"spark.executor.memory": "2g", "spark.x": "y"}
    environ["PYSPARK_SUBMIT_ARGS"] = f"--load-spark-defaults --properties-file {conf}/other pyspark-shell"
    assert said_outside(environ)["spark.master"] == "spark://head:7077"
    assert said_outside(environ)["spark.executor.memory"] == "2g"


def test_a_file_for_the_log_is_found(conf: Path) -> None:
    assert not has_log_settings({"SPARK_CONF_DIR": str(conf)})
    (conf / "log4j2.properties").touch()
    assert has_log_settings({"SPARK_CONF_DIR": str(conf)})


def test_a_default_is_for_what_nobody_says() -> None:
    settings = settings_of("desk", {}, {})
    assert settings["spark.master"] == "local[2,4]"
    assert settings["spark.app.name"] == "desk"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.sql.session.timeZone"] == "UTC"


def test_what_is_said_outside_is_not_said_again() -> None:
    said = {
        "spark.master": "local[3]",
        "spark.app.name": "etl",
        "spark.sql.shuffle.partitions": "200",
        "spark.driver.host": "10.0.0.7",
        "spark.sql.session.timeZone": "Europe/Berlin",
    }
    assert not settings_of("desk", said, {}).keys() & said.keys()


def test_what_is_written_wins_over_what_is_said_outside() -> None:
    said = {"spark.master": "spark://head:7077", "spark.executor.memory": "8g"}
    written = {"spark.executor.memory": "4g", "spark.app.name": "mine"}
    settings = settings_of("desk", said, written)
    assert settings.items() >= written.items()
    assert "spark.master" not in settings


@pytest.mark.parametrize("master", ["spark://head:7077", "yarn", "k8s://https://api:6443"])
@pytest.mark.parametrize("by", ["said", "written"])
def test_executors_elsewhere_are_not_pointed_at_this_machine(master: str, by: str) -> None:
    conf = {"spark.master": master}
    settings = settings_of("desk", conf if by == "said" else {}, conf if by == "written" else {})
    assert not settings.keys() & LOCAL_ONLY


@pytest.mark.parametrize("master", ["local", "local[8]", "local-cluster[2,1,1024]"])
def test_executors_of_this_machine_are(master: str) -> None:
    assert settings_of("desk", {"spark.master": master}, {}).keys() >= LOCAL_ONLY
