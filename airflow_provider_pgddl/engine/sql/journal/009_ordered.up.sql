-- rewrite.order_by: a chunk holds a range of the first column's values, or its NULLs, and one is copied after the other.
ALTER TABLE pgddl.chunks
    ADD COLUMN kind text NOT NULL DEFAULT 'blocks' CHECK (kind IN ('blocks', 'values', 'nulls')),
    ADD COLUMN low  text,   -- at or above; null: from the start
    ADD COLUMN high text;   -- and below; null: to the end
