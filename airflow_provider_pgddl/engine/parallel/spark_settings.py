"""Spark's settings: those of the pipeline file and the shell beside those of Spark's own files, and what is refused in
them. Pure but for reading and writing such files.

What is given travels in a file that only its owner can read: a command line shows in `ps`."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_pgddl.engine import failpoints
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.pipeline.endpoint import VARIABLE
from airflow_provider_pgddl.engine.pipeline.spark import Needs

Conf = Mapping[str, str]

# Local mode gives a lost worker up unless the master names a number of failures (`local[2]` never tries again).
LOCAL_FAILURES = 4

DEFAULT_MASTER = "local[2]"  # of the shell
_ON = "true"
_UPLOADS = "spark.kubernetes.file.upload.path"
# Each encrypts what driver and executors say to one another (Spark, "Security").
_ENCRYPTIONS = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")


def resolved(conf: Conf, env: Mapping[str, str]) -> dict[str, str]:
    """The settings with each `${NAME}` from the environment; UsageError where one is not set."""

    def value(key: str, name: str) -> str:
        if not env.get(name):
            raise UsageError(
                f"spark.conf: {key}: the environment variable {name} is not set", todo=f"export {name}=..."
            )
        return env[name]

    return {
        key: VARIABLE.sub(lambda found, key=key: value(key, found[1]), text)  # type: ignore[misc]
        for key, text in conf.items()
    }


def defaults(env: Mapping[str, str], binary: str = "spark-submit") -> Path | None:
    """The spark-defaults.conf that spark-submit reads where it is given no properties file; None where it has none."""
    folder = env.get("SPARK_CONF_DIR")
    home = env.get("SPARK_HOME")
    if folder is None and home is None and (script := shutil.which(binary, path=env.get("PATH"))):
        home = str(Path(script).resolve().parents[1])
    if folder is None and home is None:
        return None
    file = Path(folder) if folder is not None else Path(home or "", "conf")
    return found if (found := file / "spark-defaults.conf").is_file() else None


def read(file: Path) -> dict[str, str]:
    """The settings of a properties file, as Java reads one."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"the properties file {file} cannot be read: {error}") from None
    found = {}
    for line in map(str.lstrip, re.sub(r"(?<!\\)((?:\\\\)*)\\\n\s*", r"\1", text).splitlines()):
        if line and line[0] not in "#!":
            key, value, *_ = (*re.split(r"\s*(?<!\\)[=:\s]\s*", line, maxsplit=1), "")
            found[_plain(key)] = _plain(value)
    return found


def write(file: Path, conf: Conf, behind: Path | None = None) -> None:
    """A properties file that only its owner can read: what stands in `behind`, then these, which win."""
    before = "" if behind is None else behind.read_text(encoding="utf-8").rstrip("\\\n") + "\n"
    lines = [f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items()]
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(before + "".join(lines))


def refuse(master: str, conf: Conf, needs: Needs) -> None:
    """UsageError for a master or settings with which a stage would not run, or would show its passwords."""
    if any(failpoints.VARIABLE in key for key in conf):
        raise UsageError(f"{failpoints.VARIABLE} is for tests, and no setting turns failpoints on", todo="take it out")
    if master.startswith("sc://") or conf.get("spark.remote") or conf.get("spark.api.mode") == "connect":
        raise UsageError(
            f"{master if master.startswith('sc://') else 'spark.remote'} is Spark Connect, which has no RDDs to spread "
            "work with",
            todo="give the cluster's own master: spark://host:7077, yarn, k8s://…, or local[2]",
        )
    if needs == "nothing" or is_on_this_machine(master):
        return
    if needs == "authentication" and not is_authenticated(conf):
        raise UsageError(
            f"whoever reaches driver or executors of {master} can speak to them, and what arrives there is run",
            todo="set spark.authenticate and spark.authenticate.secret in spark.conf (docs/how-to/spark.md); "
            "spark.secrets keeps passwords off the network, and nobody out. Or take the risk: "
            "spark.allow_plaintext: true",
        )
    if needs == "encryption" and not is_encrypted(conf):
        raise UsageError(
            f"what driver and executors of {master} say to one another is not encrypted, and the passwords of both "
            "databases are in it",
            todo="set spark.authenticate, spark.authenticate.secret and spark.network.crypto.enabled in spark.conf "
            "(docs/how-to/spark.md), or the first two, with the passwords in a file there (spark.secrets); or "
            "take the risk: spark.allow_plaintext: true",
        )


def in_cluster(conf: Conf) -> bool:
    """Whether the cluster is to run the driver, too."""
    return conf.get("spark.submit.deployMode", "client").strip() == "cluster"


def refuse_in_cluster(master: str, conf: Conf, password_file: str | None) -> None:
    """UsageError for a driver that the cluster would not run, that could not begin there, or that nobody would wait
    for."""
    if not master.startswith(("yarn", "k8s://")):
        raise UsageError(
            f"{master} runs no driver in Python (deploy mode cluster)",
            todo="use client mode: take the deploy mode out of spark.conf, the Spark connection, the properties file "
            "or spark-defaults.conf; YARN and Kubernetes run one",
        )
    if password_file is None:
        raise UsageError(
            "deploy mode cluster: the driver runs where the passwords are not, and none travels",
            todo="mount a password file of libpq, mode 0600, where driver and executors run, and name it: "
            "spark.secrets: {file: /etc/pgddl/pgpass}; or use client mode",
        )
    for key in ("spark.yarn.submit.waitAppCompletion", "spark.kubernetes.submission.waitAppCompletion"):
        if conf.get(key, _ON).strip().lower() != _ON:
            raise UsageError(f"{key}: a stage is waited for until its end", todo="take the setting out")
    if master.startswith("k8s://") and not conf.get(_UPLOADS):
        raise UsageError(
            f"deploy mode cluster on Kubernetes: the application travels by a place that both sides reach, "
            f"and {_UPLOADS} is not set",
            todo=f"name one in spark.conf, such as {_UPLOADS}: s3a://bucket/spark",
        )


def application_name(master: str, pipeline: str, stage: str) -> str:
    """As people find it in the cluster's list. Kubernetes calls pods by it, and takes small letters, digits and - only
    (Spark, "Running Spark on Kubernetes")."""
    name = f"pgddl {pipeline} {stage}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") if master.startswith("k8s://") else name


def is_local(master: str) -> bool:
    """Whether driver and workers share this machine and one JVM."""
    return master == "local" or master.startswith("local[")


def retrying(master: str) -> str:
    """The same master, with a lost worker's task tried again in local mode: `local[2]` → `local[2,4]`."""
    if master == "local":
        return f"local[1,{LOCAL_FAILURES}]"
    if found := re.fullmatch(r"local\[\s*(\d+|\*)\s*\]", master):
        return f"local[{found[1]},{LOCAL_FAILURES}]"
    return master


def reachable_host(master: str, given: Mapping[str, str]) -> str:
    """The address of this machine at which workers can reach it; the driver is here, too."""
    if is_local(master):
        return "127.0.0.1"
    own = given.get("spark.driver.host") or os.environ.get("SPARK_LOCAL_IP")
    return own or socket.gethostbyname(socket.gethostname())


def is_on_this_machine(master: str) -> bool:
    """Whether no word of driver and workers leaves this machine."""
    return re.match(r"local(\[|$)|local-cluster\[", master) is not None


def is_authenticated(conf: Conf) -> bool:
    """Whether nobody but this application's own processes can join in. YARN and Kubernetes make the secret themselves;
    it is asked for by the same setting."""
    return _is_on(conf, "spark.authenticate")


def is_encrypted(conf: Conf) -> bool:
    """Whether nobody else can join in, or read, what they say to one another."""
    return is_authenticated(conf) and any(_is_on(conf, key) for key in _ENCRYPTIONS)


def _is_on(conf: Conf, key: str) -> bool:
    return conf.get(key, "").strip().lower() == _ON


def _plain(text: str) -> str:
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t", "r": "\r"}.get(found[1], found[1]), text)


def _escaped(text: str) -> str:
    text = re.sub(r"([\\=:#! ])", r"\\\1", text)
    return text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
