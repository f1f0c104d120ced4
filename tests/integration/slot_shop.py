"""A shop whose changes a slot brings: keys of one and of several columns, partitions of another order."""

SHOP = """
    CREATE TABLE items (id bigint PRIMARY KEY, code text UNIQUE, body text);
    CREATE TABLE pairs (b text, a int, body text, PRIMARY KEY (a, b));
    CREATE TABLE parts (id int, at int, body text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (100);
    CREATE TABLE parts_1 (body text, at int NOT NULL, id int NOT NULL);
    ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (100) TO (200);
    INSERT INTO items SELECT n, 'c' || n, 'x' FROM generate_series(1, 200) n;
    INSERT INTO pairs SELECT E'tab\\t\\\\' || n, n, 'x' FROM generate_series(1, 50) n;
    INSERT INTO parts SELECT n, n, 'x' FROM generate_series(1, 150) n;
"""
CHANGES = [
    "UPDATE items SET body = 'y' WHERE id % 3 = 0",
    "UPDATE items SET id = id + 1000 WHERE id % 7 = 0",
    "DELETE FROM items WHERE id % 5 = 0",
    "UPDATE items SET code = 'd' || id",
    "UPDATE pairs SET b = b || E'\\n' WHERE a % 2 = 0; DELETE FROM pairs WHERE a % 9 = 0",
    "UPDATE parts SET at = at + 60 WHERE at BETWEEN 60 AND 90",  # to the other partition
    "INSERT INTO parts VALUES (500, 5, 'new'), (501, 105, 'new')",
]
