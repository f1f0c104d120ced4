"""What the journal keeps of a client's string: no secrets, and no values that are to stay on the source."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.redact import (
    LEFT_OUT,
    VALUE_LEFT_OUT,
    lost_without_secrets,
    without_secrets,
    without_values,
)


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE t SET email = 'jane'",
        "INSERT INTO t VALUES ('jane')",
        "WITH x AS (DELETE FROM t WHERE email = 'jane' RETURNING 1) SELECT * FROM x",
        "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET email = 'jane'",
        "SELECT f('jane')",
        "SELECT id INTO u FROM t WHERE email = 'jane'",
        "CREATE TABLE u AS SELECT id FROM t WHERE email = 'jane'",
        "CREATE TABLE u AS EXECUTE p('jane')",
        "PREPARE p AS SELECT 'jane'",
        "EXECUTE p('jane')",
        "CALL p('jane')",
        "DO $$ BEGIN UPDATE t SET email = 'jane'; END $$",
        "COPY (SELECT 'jane') TO STDOUT",
        "SET app.who = 'jane'",
        "NOTIFY c, 'jane'",
        "EXPLAIN SELECT 'jane'",
        "DECLARE c CURSOR FOR SELECT 'jane'",
        "UPDTE t SET email = 'jane'",
        "UPDATE t SET email = 'jane",
    ],
)
def test_what_may_say_a_value_is_left_out(text: str) -> None:
    assert without_values(text) == VALUE_LEFT_OUT
    if text.count("'") % 2 == 0:
        assert without_values(f"ALTER TABLE t ADD x int; {text}") == f"ALTER TABLE t ADD x int;\n{VALUE_LEFT_OUT}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ALTER TABLE t ADD x text DEFAULT 'a'", "ALTER TABLE t ADD x text DEFAULT 'a'"),
        ("BEGIN; DROP VIEW v; COMMIT", "BEGIN;\nDROP VIEW v;\nCOMMIT"),
        ("CREATE MATERIALIZED VIEW m AS SELECT 1 AS x", "CREATE MATERIALIZED VIEW m AS SELECT 1 AS x"),
        ("-- jane\nDROP TABLE t /* jane */", "DROP TABLE t"),
        ("", ""),
    ],
)
def test_what_says_what_a_schema_is_stays(text: str, kept: str) -> None:
    assert without_values(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "CREATE ROLE r PASSWORD 'hunter2'",
        "ALTER USER MAPPING FOR u SERVER s OPTIONS (SET pass 'hunter2')",
        "CREATE SUBSCRIPTION s CONNECTION 'host=h password=hunter2' PUBLICATION p",
        "ALTER ROLE r SET app.password = 'hunter2'",
        "ALTER DATABASE d SET app.api_key TO 'hunter2'",
        "DO $$BEGIN EXECUTE 'ALTER ROLE r PASSWORD ''hunter2'''; END$$",
        "DO $$BEGIN ALTER ROLE r PASSWORD E'hunter2'; END$$",
        "DO $$BEGIN ALTER ROLE r PASSWORD U&'hunter2'; END$$",
        "DO $$BEGIN ALTER ROLE r PASSWORD $x$hunter2$x$; END$$",
        "DO $$BEGIN PERFORM dblink_connect('host=h password=hunter2'); END$$",
        "DO $a$BEGIN EXECUTE $b$SELECT dblink_connect('password=hunter2 host=' || 'h')$b$; END$a$",
        "SELECT dblink_exec('host=h password=hunter2', 'SELECT 1')",
        "SELECT dblink_connect('postgresql://u:hunter2@h/d')",
        r"SELECT dblink_connect(E'host=h password=\'hunter2\'')",
        "SELECT set_config('app.password', 'hunter2', false)",
        "SELECT login(password => 'hunter2')",
        "CALL p('jdbc:postgresql://h/d?user=u&password=hunter2')",
        "SET app.password = 'hunter2'",
        "SET app.client_secret TO 'hunter2'",
        "INSERT INTO users (name, password) VALUES ('bob', 'hunter2')",
        "UPDATE users SET password = crypt('hunter2', gen_salt('bf'))",
        "INSERT INTO dsns VALUES ('Server=h; Password=hunter2;')",
        "CREATE TABLE t (dsn text DEFAULT 'Server=h; Pwd = hunter2')",
        "DELETE FROM sessions WHERE token = 'hunter2'",
        "COPY t TO PROGRAM 'curl https://u:hunter2@h/'",
        "CREATE SERVER s FOREIGN DATA WRAPPER f OPTIONS (password 'hunter2')",
        "CREATE SERVER s FOREIGN DATA WRAPPER f OPTIONS (url 'postgresql://u:hunter2@h/d')",
        "ALTER SERVER s OPTIONS (ADD secret_access_key 'hunter2')",
        "CREATE FOREIGN TABLE t (n int) SERVER s OPTIONS (\"password\" 'hunter2')",
        "ALTER FOREIGN TABLE t OPTIONS (SET password 'hunter2')",
        "IMPORT FOREIGN SCHEMA a FROM SERVER s INTO b OPTIONS (password 'hunter2')",
        "CREATE FUNCTION f() RETURNS void AS 'SELECT dblink_connect(''host=h password=hunter2'')' LANGUAGE sql",
        "CREATE FUNCTION f() RETURNS void AS $$BEGIN ALTER ROLE r PASSWORD 'hunter2'; END$$ LANGUAGE plpgsql",
        "CREATE FUNCTION f() RETURNS void AS $$SELECT http('https://u:hunter2@h/')$$ LANGUAGE sql",
        "CREATE FUNCTION f() RETURNS void AS $$SELECT set_config('app.token', 'hunter2', true)$$ LANGUAGE sql",
        "CREATE VIEW v AS SELECT * FROM dblink('dbname=d password=hunter2', 'SELECT 1') AS t(n int)",
    ],
)
def test_a_secret_is_not_kept(text: str) -> None:
    assert without_secrets(text) == LEFT_OUT
    assert without_secrets(f"{text}; CREATE TABLE t (n int)") == f"{LEFT_OUT};\nCREATE TABLE t (n int)"
    assert "hunter" not in without_secrets(f"{text}; broken")


@pytest.mark.parametrize("text", ["0f" * 50_000, "a." * 50_000, "x" * 100_000], ids=["hex", "dots", "word"])
def test_a_long_literal_is_read_in_one_pass(text: str) -> None:
    """With another look from each of its characters on, one of these would take hours."""
    string = f"CREATE TABLE a (b bytea); INSERT INTO a VALUES ('{text}', $${text}$$)"
    assert without_secrets(string) == string
    assert without_secrets(f"{string} -- token") == f"{string} -- token"


def test_a_secret_of_a_string_that_was_cut_off_is_not_kept() -> None:
    for text in (
        "DO $$BEGIN EXECUTE 'ALTER ROLE r PASSWORD ''hunt",
        "SELECT dblink_connect('host=h password=hunt",
        "INSERT INTO users (name, password) VALUES ('bob', 'hunt",
        "CREATE SERVER s FOREIGN DATA WRAPPER f OPTIONS (secret_access_key 'hunt",
    ):
        assert without_secrets(text) == without_secrets(f"CREATE TABLE t (n int); {text}") == LEFT_OUT


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (password text, token text DEFAULT 'none', CHECK (password <> ''))",
        "CREATE TABLE t (kind text CHECK (kind IN ('password', 'token')))",
        "CREATE TABLE t (kind text CHECK (token_type = 'bearer' AND token = 'x'))",
        "COMMENT ON COLUMN t.password IS 'as argon2 makes it'",
        "CREATE TYPE kind AS ENUM ('password', 'token', 'api_key')",
        "CREATE VIEW v AS SELECT id FROM t WHERE password = ''",
        "CREATE MATERIALIZED VIEW v AS SELECT id FROM t WHERE token_type = 'bearer'",
        "CREATE SERVER s FOREIGN DATA WRAPPER f OPTIONS (host 'h', keep_connections 'off', url 'https://h:8080/a@b')",
        "CREATE FOREIGN TABLE t (token text OPTIONS (column_name 'token'), id int OPTIONS (key 'true')) SERVER s",
        (
            "CREATE FUNCTION f() RETURNS trigger AS $$BEGIN IF NEW.password = '' THEN NEW.password := md5('x'); END IF;"
            " EXECUTE 'UPDATE u SET password = $1' USING NEW.password; RETURN NEW; END$$ LANGUAGE plpgsql"
        ),
        (
            "CREATE FUNCTION f(p text) RETURNS void AS $$SELECT dblink_connect(format('host=h password=%s', p)),"
            " dblink_connect('host=h password=' || p), dblink(format('postgresql://u:%s@h/d', p))$$ LANGUAGE sql"
        ),
        "CREATE FUNCTION f() RETURNS text AS $$SELECT 'the password = ' || 'x'$$ LANGUAGE sql",
        (
            "CREATE FUNCTION f(p text) RETURNS void AS $$BEGIN EXECUTE 'ALTER ROLE x PASSWORD ''' || p || ''''; NULL;"
            " token = encode(p::bytea, 'hex'); END$$ LANGUAGE plpgsql"
        ),
        "DO $$BEGIN CREATE TABLE t (password text); END$$",
        "INSERT INTO users (name, password) SELECT name, password FROM old",
        "GRANT SELECT (password) ON t TO r",
    ],
)
def test_what_says_a_schema_is_kept_where_its_words_alone_are_suspect(text: str) -> None:
    assert without_secrets(text) == text


def test_what_the_source_could_not_record_is_shown_without_either() -> None:
    lost = {
        "id": 1,
        "what": 'a command could not be recorded: invalid input syntax for type json: "jane"',
        "statement": "ALTER TABLE t ADD x int; UPDATE t SET email = 'jane'; SELECT 'host=h password=hunter2'",
    }
    plain = lost_without_secrets(lost, in_part=False)
    assert plain["what"] == lost["what"] and "jane" in plain["statement"] and "hunter" not in plain["statement"]
    part = lost_without_secrets(lost, in_part=True)
    assert part["what"] == f"a command could not be recorded: {VALUE_LEFT_OUT}"
    assert part["statement"].startswith("ALTER TABLE t ADD x int;") and "jane" not in part["statement"]
    assert "hunter" not in str(lost_without_secrets({"what": "in 'host=h password=hunter2'"}, in_part=False))
