"""The section `spark` of the pipeline file: through what, where, and with which settings stages run."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from airflow_provider_pgddl.engine.pipeline.endpoint import VARIABLE, ConnId
from airflow_provider_pgddl.engine.pipeline.fields import Flag, Seconds, Section, Text
from airflow_provider_pgddl.engine.secrets_in_text import has_literal_password

# What Spark itself leaves out of its logs (spark.redaction.regex).
_HIDDEN = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


# Where a secret is: Kubernetes' mounts, and files.
_PLACES = re.compile(r"spark\.kubernetes\.(driver|executor)\.(secrets|secretKeyRef)\..*|.*\.(file|mountPath)")


def spark_setting(key: str, value: object) -> str:
    """One of Spark's settings as text; ValueError for a literal secret, and for what is none of Spark's."""
    if not key.startswith("spark.") or any(c.isspace() for c in key):
        raise ValueError("expected the name of a setting of Spark, such as spark.executor.memory")
    if not isinstance(value, bool | int | float | str):
        raise ValueError("expected text, a number, true or false")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if is_literal_secret(key, text):
        raise ValueError("a literal secret is refused; take it from the environment: ${NAME}")
    return text


def is_literal_secret(key: str, text: str) -> bool:
    """By the name of the setting, or as its value has a password among other things."""
    is_named = _HIDDEN.search(key) and not _PLACES.fullmatch(key) and not VARIABLE.fullmatch(text)
    return bool(is_named) or has_literal_password(text)


def _spark_settings(given: object) -> object:
    return {key: spark_setting(str(key), value) for key, value in given.items()} if isinstance(given, dict) else given


# Encryption is worth nothing without authentication, and stands for both.
Needs = Literal["encryption", "authentication", "nothing"]


class SparkSecrets(Section):
    """Where executors find the passwords of both databases by themselves."""

    file: Text | None = None
    """A password file of libpq (.pgpass, mode 0600) that every executor finds there, and a driver that the cluster runs
    (`spark.submit.deployMode: cluster`, which needs it): then no password passes to them, and `spark.authenticate` does
    without encryption.
    """


class Spark(Section):
    """`conn_id` is what operators submit through; `master` is what the shell submits to; `conf` is for both."""

    conn_id: ConnId = "spark_default"
    """The Spark connection of operators; an operator's own `conn_id` wins."""
    master: Text | None = None
    """The master of `pgddl run`, else `local[2]`; `--master` wins."""
    conf: Annotated[dict[Text, Text], BeforeValidator(_spark_settings)] = Field(default_factory=dict)
    """Settings of Spark for this pipeline, over those of spark-defaults.conf and of an operator's properties file;
    `--conf` and an operator's `conf` win. They travel in a file that only its owner can read. A setting whose name has
    secret, password, token or access.key in it takes its value from the environment: `${NAME}`; so may any other.
    """
    begin: Literal["when_it_pays", "at_once"] = "when_it_pays"
    """Threads of the driver begin a stage, and executors take over once what is left would take longer than three
    starts of Spark (18 s), by the rate so far. `at_once`: of what is more than four chunks' or windows' worth the
    driver does nothing itself.
    """
    wait: Seconds = 300.0
    """For how long a stage waits for an executor, before it opens a window and while it has none; then exit code 5."""
    allow_plaintext: Flag = False
    """On a master that is not local, do without authentication and encryption between driver and executors, although
    the passwords of both databases pass there.
    """
    secrets: SparkSecrets = Field(default_factory=SparkSecrets)

    @property
    def needs(self) -> Needs:
        """What the connection between driver and executors has to have: where no password passes others may read along,
        but not join in, for what arrives is run."""
        if self.allow_plaintext:
            return "nothing"
        return "encryption" if self.secrets.file is None else "authentication"
