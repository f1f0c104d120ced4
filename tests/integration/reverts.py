"""Tables that are rewritten in place, to be taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.rewrites import SMALL

Make = Callable[..., Lifecycle]

ITEMS = """
CREATE TABLE kinds (code text PRIMARY KEY);
INSERT INTO kinds VALUES ('a'), ('b'), ('c');
CREATE TABLE items (
    id serial PRIMARY KEY, legacy text DEFAULT 'was', kind text REFERENCES kinds ON UPDATE CASCADE,
    code text NOT NULL UNIQUE, n integer NOT NULL DEFAULT 0 CHECK (n >= 0), note varchar(20),
    size integer GENERATED ALWAYS AS (length(note)) STORED);
CREATE TABLE parts (
    item integer REFERENCES items ON DELETE CASCADE ON UPDATE CASCADE, part integer, PRIMARY KEY (item, part));
CREATE TABLE seen (what text, id bigint);
CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.seen VALUES (TG_OP, coalesce(NEW.id, OLD.id));
    RETURN NULL;
END $$;
CREATE TRIGGER seen AFTER INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION seen();
CREATE TRIGGER always AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION seen();
ALTER TABLE items ENABLE ALWAYS TRIGGER always;
CREATE TRIGGER off AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION seen();
ALTER TABLE items DISABLE TRIGGER off;
CREATE STATISTICS many ON kind, n FROM items;
CREATE POLICY everybody ON items USING (n >= 0);
GRANT SELECT ON items TO PUBLIC;
GRANT UPDATE (note) ON items TO PUBLIC;
COMMENT ON TABLE items IS 'things';
COMMENT ON COLUMN items.note IS 'a note';
COMMENT ON CONSTRAINT items_kind_fkey ON items IS 'its kind';
INSERT INTO items (kind, code, n, note, legacy)
SELECT (ARRAY['a', 'b', 'c'])[1 + i % 3], 'c' || i, i, 'note ' || i, 'legacy ' || i FROM generate_series(1, 500) i;
INSERT INTO parts SELECT i, 1 FROM generate_series(1, 500) i;
"""
WIDER = {
    "public.items": {"alter": ["ALTER COLUMN id TYPE bigint", "ALTER COLUMN n TYPE bigint", "DROP COLUMN legacy"]},
    "public.parts": {"alter": ["ALTER COLUMN item TYPE bigint"]},
}
SHOWN = "id, kind, code, n, note, size"

# Names that Postgres gives by number, and what of ours is there until the end.
MADE_ANEW = ["RI_ConstraintTrigger", "pgddl"]


def rewrite_of_items(dsn: str, lifecycle: Make) -> Make:
    """What is given is the pipeline's."""
    execute(dsn, ITEMS)

    def make(**pipeline: Any) -> Lifecycle:
        return lifecycle(dsn, **({"rewrite": WIDER} | SMALL | pipeline))

    return make


def one(move: Lifecycle, query: str) -> Any:
    return move.journal(query)[0][0]


def rows(move: Lifecycle, columns: str = "t.*", table: str = "items") -> list[str]:
    return [row[0] for row in move.journal(f"SELECT ROW({columns})::text FROM {table} t ORDER BY 1")]


def type_of_id(move: Lifecycle) -> str:
    return str(one(move, "SELECT format_type(atttypid, NULL) FROM pg_attribute"
                         " WHERE attrelid = 'items'::regclass AND attname = 'id'"))  # fmt: skip


WRITES = """
INSERT INTO items (kind, code) VALUES ('a', 'new');
UPDATE items SET note = 'other', n = n + 1 WHERE id < 50;
DELETE FROM items WHERE id BETWEEN 60 AND 70;
UPDATE items SET id = id + 10000 WHERE id BETWEEN 80 AND 90;
UPDATE items SET code = 'x' WHERE code = 'c100';
UPDATE items SET code = 'c100' WHERE code = 'c101';
UPDATE items SET code = 'c101' WHERE code = 'x';
UPDATE items SET id = 0 WHERE id = 200;
UPDATE items SET id = 200 WHERE id = 201;
UPDATE items SET id = 201 WHERE id = 0
"""
