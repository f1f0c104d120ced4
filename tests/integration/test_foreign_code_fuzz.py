"""Code of a role that nobody trusts, at the bottom of random nestings of types, casts, operators and functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.attempts import refused_by_preflight
from tests.integration.foreign_code import migration, rewrite
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory
from tests.integration.mallory_kinds import Kind

Make = Callable[..., Lifecycle]


TABLES = 8


class Nest:
    """Builds one table from a seed: `types` grows outwards from what has code of hers, and a column is of the last."""

    def __init__(self, chance: random.Random, name: str) -> None:
        self.chance, self.name = chance, name
        self.made: list[str] = []
        self._numbers = iter(range(100))

    def table(self) -> Kind:
        type_, value = "text", "('v' || i)"
        for _ in range(self.chance.randint(1, 5)):
            type_, value = self.chance.choice([self.domain, self.array, self.composite, self.enum])(type_, value)
        columns = [f"v {type_}"]
        if self.chance.random() < 0.5:
            columns.append(f"d {type_}")
        columns += [extra for extra in self.extras() if self.chance.random() < 0.4]
        indexes = [index for index in self.indexes() if self.chance.random() < 0.4]
        made = [*self.made, f"CREATE TABLE {{t}} (id bigint PRIMARY KEY, {', '.join(columns)})", *indexes]
        return Kind(self.name, "; ".join(made), value=value, expected="refused")

    def named(self, what: str) -> str:
        return f"m.{self.name}_{what}_{next(self._numbers)}"

    # --- types ------------------------------------------------------------------------------------------------------

    def domain(self, type_: str, value: str) -> tuple[str, str]:
        name, told = self.named("domain"), self.named("check")
        self.made.append(self._function(told, type_, "boolean", "true"))
        constant = self.chance.random() < 0.3
        check = f"m.evil(1, '{self.name}') > 0" if constant else f"{told}(VALUE)"
        self.made.append(f"CREATE DOMAIN {name} AS {type_} CHECK ({check})")
        return name, f"({value})::{name}"

    def array(self, type_: str, value: str) -> tuple[str, str]:
        if type_.endswith("[]"):
            return self.composite(type_, value)
        return f"{type_}[]", f"ARRAY[{value}, {value}]::{type_}[]"

    def composite(self, type_: str, value: str) -> tuple[str, str]:
        name = self.named("pair")
        self.made.append(f"CREATE TYPE {name} AS (a int, b {type_})")
        if self.chance.random() < 0.5:
            self._cast(name)
        return name, f"ROW(i, {value})::{name}"

    def enum(self, type_: str, value: str) -> tuple[str, str]:
        """Begins anew, with a type that has a cast."""
        name = self.named("mood")
        self.made.append(f"CREATE TYPE {name} AS ENUM ('a', 'b')")
        self._cast(name)
        return name, f"(ARRAY['a', 'b'])[1 + i % 2]::{name}"

    def _cast(self, type_: str) -> None:
        function = self.named("cast")
        self.made.append(self._function(function, type_, "text", "pg_catalog.format('%s', $1)"))
        when = self.chance.choice(["", "AS ASSIGNMENT", "AS IMPLICIT"])
        self.made.append(f"CREATE CAST ({type_} AS text) WITH FUNCTION {function}({type_}) {when}")

    def _function(self, name: str, takes: str, gives: str, value: str) -> str:
        kind = self.chance.choice(["plpgsql", "plpgsql", "sql"])
        if kind == "sql":
            body = f"SELECT m.strike('{self.name}'); SELECT {value}"
        else:
            body = f"BEGIN PERFORM m.strike('{self.name}'); RETURN {value}; END"
        return f"CREATE FUNCTION {name}({takes}) RETURNS {gives} LANGUAGE {kind} IMMUTABLE AS $$ {body} $$"

    # --- what else a table has --------------------------------------------------------------------------------------

    def extras(self) -> Iterator[str]:
        yield f"CHECK ({self.deep('id')} > 0)"
        yield f"g bigint GENERATED ALWAYS AS ({self.deep('id')}) STORED"
        yield f"n bigint DEFAULT {self.deep('1')}"
        operator = self.named("above")
        self.made.append(self._function(operator, "bigint, bigint", "boolean", "true"))
        sign = "@#" + self.name[-1].translate(SIGNS) + "@"
        self.made.append(f"CREATE OPERATOR m.{sign} (leftarg = bigint, rightarg = bigint, function = {operator})")
        yield f"CHECK (id OPERATOR(m.{sign}) 0)"

    def indexes(self) -> Iterator[str]:
        yield f"CREATE INDEX ON {{t}} (({self.deep('id')}))"
        yield f"CREATE INDEX ON {{t}} (id) WHERE {self.deep('1')} > 0"
        yield f"CREATE STATISTICS m.s_{self.name} ON ({self.deep('id')}), id FROM {{t}}"

    def deep(self, argument: str) -> str:
        """A number by way of several functions."""
        call = f"m.evil({argument}, '{self.name}')"
        for _ in range(self.chance.randint(0, 2)):
            name = self.named("through")
            self.made.append(self._function(name, "bigint", "bigint", "$1"))
            call = f"{name}({call})"
        return call


SIGNS = str.maketrans("0123456789", "+*/<>=~!&%")


@pytest.fixture
def seeds(all_combinations: bool) -> list[int]:
    return [random.randrange(1 << 30) for _ in range(12 if all_combinations else 1)]


def tables(mallory: Mallory, dsn: str, seed: int) -> list[Kind]:
    print(f"seed {seed}")
    chance = random.Random(seed)
    kinds = [Nest(chance, f"f{seed}_{n}").table() for n in range(TABLES)]
    for kind in kinds:
        mallory.does(dsn, kind.told(kind.made))
        mallory.does(dsn, kind.rows(1, 8))
    return kinds


def through(mallory: Mallory, move: Lifecycle, kinds: list[Kind]) -> None:
    """As far as it goes: a refusal and a stop are no gain."""
    dsns = sorted({move.source, move.target})
    try:
        for turn, stage in enumerate(("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap"), 1):
            mallory.writes(move.source, kinds, turn)
            move.run(stage)
            if len(dsns) == 2 and stage == "snapshot":
                mallory.lets_in(move.target)
    except PgddlError as error:
        print(f"stopped: {error}"[:500])
    gained = mallory.escalations(*dsns)
    assert gained == [], "\n".join(gained)


def test_random_nestings_of_a_role_that_is_trusted(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, seeds: list[int]
) -> None:
    """What is made at random does bite, on either way."""
    kinds = tables(mallory, on_both[0], seeds[0])
    trusted = {"trusted_roles": [mallory.name]}
    for move in (migration(lifecycle, *on_both, kinds, **trusted), rewrite(lifecycle, on_both[0], kinds, **trusted)):
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
            move.run(stage)
            if stage == "snapshot" and move.source != move.target:
                mallory.lets_in(move.target)
        stages.reset(load_pipeline(move.content), move.source, move.target, None)
    for dsn in on_both:
        assert mallory.escalations(dsn), dsn


def test_random_nestings_in_place(
    mallory: Mallory, pg18: Cluster, target_dsn: str, lifecycle: Make, seeds: list[int]
) -> None:
    mallory.joins(pg18).moves_in(target_dsn)
    for n, seed in enumerate(seeds):
        kinds = tables(mallory, target_dsn, seed)
        rows = ("change_log", "direct_trigger")[(seed + n) % 2]
        refused = refused_by_preflight(rewrite(lifecycle, target_dsn, kinds), kinds)
        left = [kind for kind in kinds if kind.name not in refused]
        print(f"refused: {sorted(refused)}")
        if left:
            move = rewrite(lifecycle, target_dsn, left, capture={"rows": rows})
            through(mallory, move, left)
            if "swap" in move.results:
                move.run("cleanup")
            else:
                stages.reset(load_pipeline(move.content), target_dsn, target_dsn, None)


def test_random_nestings_across(mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, seeds: list[int]) -> None:
    kinds = tables(mallory, on_both[0], seeds[0])
    refused = refused_by_preflight(migration(lifecycle, *on_both, kinds), kinds)
    print(f"refused: {sorted(refused)}")
    for kind in kinds:
        if kind.name in refused:
            mallory.does(on_both[0], f"DROP TABLE {kind.relation} CASCADE")
    left = [kind for kind in kinds if kind.name not in refused]
    if left:
        through(mallory, migration(lifecycle, *on_both, left), left)
