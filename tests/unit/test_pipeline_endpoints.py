"""Where a pipeline's servers are, and that no secret stands in its file, nor in what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.engine.errors import PipelineFileError, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline, refuse_literal_secrets
from tests.unit.pipelines import MIGRATE, migrate, refusal


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:hunter2@db/shop",
        "postgres://app:hunter2@db:5432/shop?sslmode=require",
        "postgresql://app@db/shop?password=hunter2",
        "host=db user=app password=hunter2",
        "host=db user=app password='hunter2'",
        "host=db password=hunter2${SUFFIX}",
        "host=db sslpassword=hunter2",
        "postgresql://app:hunter2@db:port/shop?no_such_option=1",
        "host=db hunter2",
    ],
)
def test_a_literal_password_is_refused_and_never_repeated(dsn: str) -> None:
    for text in (
        refusal(migrate(target={"dsn": dsn})),
        refusal(MIGRATE.replace("{conn_id: shop_pg18}", f'{{dsn: "{dsn}"}}')),
    ):
        assert "hunter2" not in text
        assert "target.dsn" in text


WRITTEN = [
    {"dsn": "postgresql://app:hunter2@db/shop"},
    {"dsn": "postgresql://app:hunter2@{{ var.value.host }}/shop"},
    {"dsn": "host={{ var.value.host }} password='hunter2 {{ ds }}'"},
    {"dsn": "host=db hunter2"},
    {"host": "db", "password": "hunter2"},
    {"conn_id": "postgresql://app:hunter2@db/shop"},
    "host=db password=hunter2",
    {"dsn_command": ["echo", "postgresql://app:hunter2@db/shop"]},
    {"dsn_command": ["echo", "host={{ var.value.host }} password=hunter2"]},
    {"dsn_command": ["sh", "-c", "PGPASSWORD=hunter2 tokens"]},
    {"dsn_command": ["tokens", "--password", "hunter2"]},
]
RENDERED = [
    {"conn_id": "shop"},
    {"conn_id": "{{ var.value.shop }}"},
    {"dsn": "${SHOP_DSN}"},
    {"dsn": "{{ var.value.shop_dsn }}"},
    {"dsn": "host=db password=${SECRET} user={{ var.value.user }}"},
    {"dsn": "host=db password={{ conn.shop.password }}"},
    {"dsn": "{% if params.big %}host=a{% else %}host=b{% endif %} user=c"},
    {"dsn_command": ["sh", "-c", "echo postgresql://app:$SECRET@db/shop; echo password=${SECRET}"]},
    {"dsn_command": ["vault", "read", "-field=password", "secret/shop", "--password-file=/run/shop"]},
    {
        "dsn_command": [
            "aws",
            "secretsmanager",
            "get-secret-value",
            "--secret-id",
            "arn:aws:x:eu-west-1:1:secret:shop-a",
        ]
    },
    {"dsn_command": ["tokens", "--password={{ conn.shop.password }}"]},
]


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("endpoint", WRITTEN)
def test_a_secret_is_refused_before_templates_are_rendered(side: str, endpoint: dict[str, str] | str) -> None:
    given = migrate(**{side: endpoint}) | {"nonsense": 1}
    for source in (given, yaml.safe_dump(given)):
        with pytest.raises(PipelineFileError) as caught:
            refuse_literal_secrets(source)
        assert "hunter2" not in str(caught.value) and f"{side}." in str(caught.value)


OPTIONS = "spark.driver.extraJavaOptions"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.authenticate.secret", "hunter2"),
        (OPTIONS, "-Xmx1g -Djavax.net.ssl.trustStorePassword=hunter2"),
        (OPTIONS, "-Dfs.s3a.secret.key=hunter2"),
        ("spark.jars.repositories", "https://u:hunter2@repository.example/maven"),
    ],
)
def test_a_secret_in_a_setting_of_spark_is_refused_as_soon(key: str, value: str) -> None:
    for source in (given := migrate(spark={"conf": {key: value}}), yaml.safe_dump(given)):
        with pytest.raises(PipelineFileError) as caught:
            refuse_literal_secrets(source)
        assert "hunter2" not in str(caught.value) and f"spark.conf.{key}" in str(caught.value)
        assert "hunter2" not in refusal(source)


@pytest.mark.parametrize(
    "value",
    ["-Djavax.net.ssl.trustStorePassword=${SECRET}", "-Dx.passwordFile=/run/secret", "https://repository.example:8443/a@b",
     "-Dfs.s3a.secret.key={{ conn.s3.password }}", "-Dfs.token.provider.class=a.B"],
)  # fmt: skip
def test_a_setting_of_spark_may_say_where_a_secret_is(value: str) -> None:
    given = migrate(spark={"conf": {OPTIONS: value}})
    refuse_literal_secrets(given)
    load_pipeline(given)


@pytest.mark.parametrize("endpoint", RENDERED)
def test_what_is_no_secret_waits_until_it_is_rendered(endpoint: dict[str, str]) -> None:
    refuse_literal_secrets(migrate(target=endpoint))
    refuse_literal_secrets(yaml.safe_dump(migrate(target=endpoint)))


@pytest.mark.parametrize(
    "source",
    ["shop.yaml", Path("shop.yaml"), None, object(), {"source": None}, {"source": 7}, "{{ var.value.shop }}",
     "{% if x %}\nsource: {conn_id: a}\n{% else %}\nsource: {conn_id: b}\n{% endif %}", "- a: b\n- c"],
)  # fmt: skip
def test_what_nobody_can_look_into_is_left_to_the_reader(source: object) -> None:
    refuse_literal_secrets(source)


def test_a_secret_in_the_wrong_key_is_not_repeated_either() -> None:
    assert "hunter2" not in refusal(migrate(target={"conn_id": "postgresql://app:hunter2@db/shop"}))
    assert "hunter2" not in refusal(migrate(target={"conn_id": "x", "password": "hunter2"}))
    assert "hunter2" not in refusal(migrate(target="postgresql://app:hunter2@db/shop"))
    assert "hunter2" not in refusal(migrate(target={"dsn": ["postgresql://app:hunter2@db/shop"]}))


@pytest.mark.parametrize(
    ("dsn", "environment", "expected"),
    [
        ("${SHOP}", {"SHOP": "host=db password='a b'"}, {"host": "db", "password": "a b"}),
        ("${SHOP}", {"SHOP": "postgresql://u:p%40@db"}, {"host": "db", "user": "u", "password": "p@"}),
        ("postgresql://app@db/shop", {}, {"host": "db", "dbname": "shop", "user": "app"}),
        ("postgresql://app:${PW}@${HOST}/shop", {"PW": "a@b:/ 'c", "HOST": "db"},
         {"host": "db", "dbname": "shop", "user": "app", "password": "a@b:/ 'c"}),
        ("host=db password=${PW} dbname=shop_${NAME}", {"PW": "it's \\", "NAME": "eu"},
         {"host": "db", "dbname": "shop_eu", "password": "it's \\"}),
    ],
)  # fmt: skip
def test_variables_are_taken_value_by_value(dsn: str, environment: dict[str, str], expected: dict[str, str]) -> None:
    endpoint = load_pipeline(migrate(target={"dsn": dsn})).target
    assert endpoint is not None
    conninfo = endpoint.resolve(environment)
    if dsn == "${SHOP}":
        assert conninfo == environment["SHOP"]
    assert conninfo_to_dict(conninfo) == expected


def test_a_command_has_no_password_among_its_words() -> None:
    for words in (["echo", "postgresql://app:hunter2@db/shop"], ["echo", "host=db password=hunter2"]):
        said = refusal(migrate(target={"dsn_command": words}))
        assert "target.dsn_command" in said and "hunter2" not in said


@pytest.mark.parametrize(
    "words", [["get-secret", "--password", "env"], ["python3", "-c", "import x; password=x.get(); print(password)"]]
)
def test_a_command_may_say_where_a_password_comes_from(words: list[str]) -> None:
    load_pipeline(migrate(target={"dsn_command": words}))


def test_a_missing_or_wrong_variable_is_named_and_its_value_is_not() -> None:
    endpoint = load_pipeline(migrate(target={"dsn": "${SHOP_DSN}"})).target
    assert endpoint is not None
    with pytest.raises(UsageError, match="SHOP_DSN is not set"):
        endpoint.resolve({})
    with pytest.raises(UsageError, match="SHOP_DSN is not set"):
        endpoint.resolve({"SHOP_DSN": ""})
    with pytest.raises(UsageError) as caught:
        endpoint.resolve({"SHOP_DSN": "hunter2"})
    assert "SHOP_DSN" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(UsageError, match="known to Airflow only"):
        load_pipeline(MIGRATE).source.resolve({})


def test_a_dsn_is_a_whole_conninfo() -> None:
    assert "not a Postgres conninfo" in refusal(migrate(target={"dsn": "${BASE} and more"}))
    assert "with braces" in refusal(migrate(target={"dsn": "$SHOP_DSN"}))
    assert "not a Postgres conninfo" in refusal(migrate(target={"dsn": "shop"}))


def test_an_endpoint_is_one_thing_and_the_target_another_database() -> None:
    assert "give either conn_id or dsn" in refusal(migrate(target={}))
    assert "give either conn_id or dsn" in refusal(migrate(target={"conn_id": "a", "dsn": "${A}"}))
    assert "leave target out to rewrite in place" in refusal(migrate(target={"conn_id": "shop_pg16"}))
