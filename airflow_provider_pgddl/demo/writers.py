"""The shop's application: what it writes, what its orders must look like, and the rules that its data keeps."""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as pg

from airflow_provider_pgddl.demo.traffic import Connection, Operation, Traffic


@dataclass(frozen=True, slots=True)
class OrderState:
    """An order as a transaction left it: `digest` is null where the transaction took the order away."""

    order: int
    version: int
    digest: str | None


class Ledger:
    """What the orders must look like, going by what Postgres acknowledged.

    Acknowledgements of two writers can arrive in another order than their commits; versions of a row and numbers that
    are never used again tell which came last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: dict[int, OrderState] = {}
        self._possible: dict[int, list[OrderState]] = {}

    def start_from(self, conn: Connection) -> None:
        query = "SELECT id, version, md5(o::text) FROM shop.orders o"
        self._orders = {row[0]: OrderState(*row) for row in conn.execute(query)}

    def record(self, states: Sequence[OrderState]) -> None:
        with self._lock:
            for state in states:
                known = self._orders.get(state.order)
                if known is None or (
                    known.digest is not None and (state.digest is None or state.version > known.version)
                ):
                    self._orders[state.order] = state

    def record_possible(self, states: Sequence[OrderState]) -> None:
        with self._lock:
            for state in states:
                self._possible.setdefault(state.order, []).append(state)

    def check(self, conn: Connection) -> list[str]:
        """How the orders of this database differ from what was acknowledged; empty where they do not."""
        problems = []
        found = {row[0]: row[1] for row in conn.execute("SELECT id, md5(o::text) FROM shop.orders o")}
        for order in sorted(found.keys() | self._orders.keys() | self._possible.keys()):
            known = self._orders.get(order)
            expected = {known.digest if known else None}
            expected |= {
                state.digest
                for state in self._possible.get(order, ())
                if known is None
                or (known.digest is not None and (state.digest is None or state.version > known.version))
            }
            if found.get(order) not in expected:
                if order not in found:
                    problems.append(f"order {order} is lost")
                elif expected == {None}:
                    problems.append(f"order {order} should not be there")
                else:
                    problems.append(f"order {order} is not as it was last written")
        return problems


class Writers(Traffic):
    """The shop's application: orders, payments, stock, events, pictures, and a scratch table that it truncates."""

    def __init__(self, dsns: Sequence[str], **options: Any) -> None:
        super().__init__(dsns, **options)
        self.ledger = Ledger()
        self._new_customers: deque[uuid.UUID] = deque()
        # To a snapshot that is older than a TRUNCATE the table is empty: set while somebody reads at such a snapshot.
        self.spare_truncate = False

    def prepare(self, conn: Connection) -> list[Operation]:
        def one(query: str) -> int:
            row = conn.execute(query.encode()).fetchone()
            assert row is not None
            return int(row[0])

        self._accounts = one("SELECT max(aid) FROM public.pgbench_accounts")
        self._branches = one("SELECT max(bid) FROM public.pgbench_branches")
        self._customers = one("SELECT count(*) FROM shop.customers WHERE email::text LIKE 'customer.%'")
        self._products = one("SELECT count(*) FROM shop.products")
        self._last_order = one("SELECT max(id) FROM shop.orders")
        self.ledger.start_from(conn)
        conn.rollback()
        return [
            Operation("new order", 20, self.new_order),
            Operation("change an order", 16, self.change_order),
            Operation("change a line", 8, self.change_line),
            Operation("cancel an order", 5, self.cancel_order),
            Operation("renumber an order", 4, self.renumber_order),
            Operation("pay", 16, self.pay),
            Operation("swap lockers", 4, self.swap_lockers),
            Operation("swap shelves", 4, self.swap_shelves),
            Operation("new customer", 3, self.new_customer),
            Operation("change a customer", 5, self.change_customer),
            Operation("delete a customer", 2, self.delete_customer),
            Operation("change a product", 4, self.change_product),
            Operation("add an event", 8, self.add_event),
            Operation("move an event", 2, self.move_event),
            Operation("delete an event", 2, self.delete_event),
            # Two of these can choose one day for one product, or one code: theirs to expect.
            Operation("move a price", 2, self.move_price, (pg.UniqueViolation,)),
            Operation("rename a promotion", 2, self.rename_promotion, (pg.UniqueViolation,)),
            Operation("add a picture", 1, self.add_picture),
            Operation("change a picture", 2, self.change_picture),
            Operation("fill a cart", 6, self.fill_cart),
            Operation("empty all carts", 0.5, self.empty_carts),
        ]

    def committed(self, result: Any) -> None:
        if isinstance(result, uuid.UUID):
            self._new_customers.append(result)
        elif result:
            self._last_order = max(self._last_order, *(state.order for state in result))
            self.ledger.record(result)

    def unknown(self, result: Any) -> None:
        if isinstance(result, list):
            self.ledger.record_possible(result)

    # Orders

    def new_order(self, conn: Connection, chance: random.Random) -> list[OrderState]:
        skus = sorted({self._some_sku(chance) for _ in range(chance.randint(1, 4))})
        warehouse = chance.choice(["BER", "LYS", "W3"])
        (order,) = _row(
            conn.execute(
                "INSERT INTO shop.orders (customer, note, promised) VALUES (%s, %s, tstzrange(%s, %s)) RETURNING id",
                [
                    self._some_customer(chance),
                    chance.choice([None, "", "call me \\ maybe\t"]),
                    "2026-02-01+00",
                    "2026-02-03+00",
                ],
            )
        )
        for number, sku in enumerate(skus, 1):
            quantity = chance.randint(1, 5)
            conn.execute(
                "INSERT INTO shop.order_lines (order_id, line_no, sku, quantity, price)"
                " SELECT %s, %s, sku, %s, price FROM shop.products WHERE sku = %s",
                [order, number, quantity, sku],
            )
            conn.execute(
                "UPDATE shop.stock SET quantity = quantity - %s WHERE warehouse = %s AND sku = %s",
                [quantity, warehouse, sku],
            )
        return self._total(conn, order)

    def change_order(self, conn: Connection, chance: random.Random) -> list[OrderState]:
        order = self._lock_order(conn, chance)
        return _states(
            conn.execute(
                "UPDATE shop.orders o SET status = %s, note = %s WHERE id = %s RETURNING id, version, md5(o::text)",
                [
                    chance.choice(["new", "paid", "packed", "shipped", "returned"]),
                    chance.choice([None, "x" * chance.randint(0, 300)]),
                    order,
                ],
            )
        )

    def change_line(self, conn: Connection, chance: random.Random) -> list[OrderState]:
        order = self._lock_order(conn, chance)
        conn.execute(
            "UPDATE shop.order_lines SET quantity = %s WHERE order_id = %s AND line_no = 1",
            [chance.randint(1, 9), order],
        )
        return self._total(conn, order)

    def cancel_order(self, conn: Connection, chance: random.Random) -> list[OrderState]:
        order = self._lock_order(conn, chance)
        gone = conn.execute("DELETE FROM shop.orders WHERE id = %s RETURNING id, version", [order]).fetchall()
        return [OrderState(number, version, None) for number, version in gone]

    def renumber_order(self, conn: Connection, chance: random.Random) -> list[OrderState]:
        order = self._lock_order(conn, chance)
        moved = _states(
            conn.execute(
                "UPDATE shop.orders o SET id = nextval(pg_get_serial_sequence('shop.orders', 'id')) WHERE id = %s"
                " RETURNING id, version, md5(o::text)",
                [order],
            )
        )
        return [OrderState(order, 0, None), *moved] if moved and order is not None else []

    def _lock_order(self, conn: Connection, chance: random.Random) -> int | None:
        row = conn.execute(
            "SELECT id FROM shop.orders WHERE id >= %s ORDER BY id LIMIT 1 FOR UPDATE",
            [chance.randint(1, self._last_order)],
        ).fetchone()
        return row[0] if row else None

    def _total(self, conn: Connection, order: int | None) -> list[OrderState]:
        return _states(
            conn.execute(
                "UPDATE shop.orders o"
                " SET total = (SELECT coalesce(sum(amount), 0) FROM shop.order_lines l WHERE l.order_id = o.id)"
                " WHERE id = %s RETURNING id, version, md5(o::text)",
                [order],
            )
        )

    # Everything else

    def pay(self, conn: Connection, chance: random.Random) -> None:
        """What pgbench does: one amount in three places, and a line in the history."""
        account, branch = chance.randint(1, self._accounts), chance.randint(1, self._branches)
        teller, delta = (branch - 1) * 10 + chance.randint(1, 10), chance.randint(-5000, 5000)
        conn.execute("UPDATE public.pgbench_accounts SET abalance = abalance + %s WHERE aid = %s", [delta, account])
        conn.execute("UPDATE public.pgbench_tellers SET tbalance = tbalance + %s WHERE tid = %s", [delta, teller])
        conn.execute("UPDATE public.pgbench_branches SET bbalance = bbalance + %s WHERE bid = %s", [delta, branch])
        conn.execute(
            "INSERT INTO public.pgbench_history (tid, bid, aid, delta, mtime) VALUES (%s, %s, %s, %s, now())",
            [teller, branch, account, delta],
        )

    def swap_lockers(self, conn: Connection, chance: random.Random) -> None:
        """Through null, since this constraint is checked row by row."""
        pair = [self._some_customer(chance), self._some_customer(chance)]
        rows = conn.execute(
            "SELECT id, locker FROM shop.customers WHERE id = ANY (%s) ORDER BY id FOR UPDATE", [pair]
        ).fetchall()
        if len(rows) == 2:
            (one, first), (other, second) = rows
            conn.execute("UPDATE shop.customers SET locker = NULL WHERE id = %s", [one])
            conn.execute("UPDATE shop.customers SET locker = %s WHERE id = %s", [first, other])
            conn.execute("UPDATE shop.customers SET locker = %s WHERE id = %s", [second, one])

    def swap_shelves(self, conn: Connection, chance: random.Random) -> None:
        """In one statement, since this constraint is checked at its end."""
        pair = [self._some_sku(chance), self._some_sku(chance)]
        conn.execute("SELECT FROM shop.products WHERE sku = ANY (%s) ORDER BY sku FOR UPDATE", [pair])
        conn.execute(
            "UPDATE shop.products p SET shelf = q.shelf FROM shop.products q"
            " WHERE p.sku = ANY (%(pair)s) AND q.sku = ANY (%(pair)s) AND p.sku <> q.sku",
            {"pair": pair},
        )

    def new_customer(self, conn: Connection, chance: random.Random) -> uuid.UUID:
        customer = uuid.UUID(int=chance.getrandbits(128))
        conn.execute(
            "INSERT INTO shop.customers (id, email, name, tier, tags, profile, address)"
            " VALUES (%s, %s, %s, 'O''Reilly special', %s, '{\"new\": true}', ROW('1, \"New\" St', NULL, ''))",
            [customer, f"new.{customer}@shop.example", "Zoë", ["fresh", None, 'a "b"']],
        )
        return customer

    def change_customer(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(
            "UPDATE shop.customers SET tags = tags[1:3] || %s::text, last_ip = %s,"
            " profile = profile || jsonb_build_object('v', version) WHERE id = %s",
            [chance.choice(["a", "b,c", None]), f"10.0.0.{chance.randint(0, 255)}", self._some_customer(chance)],
        )

    def delete_customer(self, conn: Connection, chance: random.Random) -> None:  # noqa: ARG002
        with contextlib.suppress(IndexError):
            conn.execute("DELETE FROM shop.customers WHERE id = %s", [self._new_customers.popleft()])

    def change_product(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(
            "UPDATE shop.products SET price = round((price * %s)::numeric, 2), rating = %s, name = name || '.'"
            " WHERE sku = %s",
            [chance.choice(["0.9", "1.1"]), chance.random() * 5, self._some_sku(chance)],
        )

    def add_event(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(
            "INSERT INTO shop.events (at, kind, payload)"
            " VALUES ('2026-01-01+00'::timestamptz + %s * interval '1 s', %s, %s)",
            [chance.randint(0, 110 * 86400), chance.choice(["view", "buy"]), '{"live": true}'],
        )

    def move_event(self, conn: Connection, chance: random.Random) -> None:
        """To another partition, more often than not."""
        conn.execute(
            "UPDATE shop.events SET at = at + interval '31 days' WHERE (at, id) = (SELECT at, id FROM shop.events"
            " WHERE at >= '2026-01-01+00'::timestamptz + %s * interval '1 s' ORDER BY at, id LIMIT 1)",
            [chance.randint(0, 80 * 86400)],
        )

    def delete_event(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(
            "DELETE FROM shop.events WHERE (at, id) = (SELECT at, id FROM shop.events"
            " WHERE at >= '2026-01-01+00'::timestamptz + %s * interval '1 s' ORDER BY at, id LIMIT 1)",
            [chance.randint(0, 110 * 86400)],
        )

    def move_price(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(
            'UPDATE shop."Price List" SET "Valid From" = "Valid From" + %s, "Net Price" = "Net Price" + 0.0001'
            ' WHERE "SKU" = %s AND "Valid From" = (SELECT max("Valid From") FROM shop."Price List" WHERE "SKU" = %s)',
            [chance.randint(1, 50), sku := self._some_sku(chance), sku],
        )

    def rename_promotion(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(
            "UPDATE shop.promotions SET code = %s, percent = %s WHERE code ="
            " (SELECT code FROM shop.promotions ORDER BY code LIMIT 1 OFFSET %s)",
            [f"PROMO {chance.getrandbits(40)}", chance.randint(1, 100), chance.randint(0, 39)],
        )

    def add_picture(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(
            'INSERT INTO shop."Product Images" (sku, "Alt Text", "Data") VALUES (%s, %s, %s)',
            [self._some_sku(chance), None, chance.randbytes(chance.randint(0, 20_000))],
        )

    def change_picture(self, conn: Connection, chance: random.Random) -> None:
        # Leaves large values where they are, out of line and unread.
        conn.execute(
            'UPDATE shop."Product Images" SET "Alt Text" = %s WHERE "Image Id" = %s',
            [f"Picture, {chance.random()}", chance.randint(1, 60)],
        )

    def fill_cart(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(
            "INSERT INTO shop.carts (token, contents, touched) VALUES (%s, %s, now())"
            " ON CONFLICT (token) DO UPDATE SET contents = EXCLUDED.contents, touched = EXCLUDED.touched",
            [f"cart {chance.randint(1, 300)}", f'["{self._some_sku(chance)}"]'],
        )

    def empty_carts(self, conn: Connection, chance: random.Random) -> None:  # noqa: ARG002
        conn.execute("DELETE FROM shop.carts" if self.spare_truncate else "TRUNCATE shop.carts")

    def _some_customer(self, chance: random.Random) -> uuid.UUID:
        number = chance.randint(1, self._customers)
        return uuid.UUID(hashlib.md5(f"customer {number}".encode(), usedforsecurity=False).hexdigest())

    def _some_sku(self, chance: random.Random) -> str:
        return f"SKU-{chance.randint(1, self._products):06d}"


INVARIANTS = {
    "balances of accounts, tellers and branches are the sum of the history": """
        SELECT count(DISTINCT total) - 1
          FROM (SELECT sum(abalance) FROM public.pgbench_accounts UNION ALL
                SELECT sum(tbalance) FROM public.pgbench_tellers UNION ALL
                SELECT sum(bbalance) FROM public.pgbench_branches UNION ALL
                SELECT coalesce(sum(delta), 0) FROM public.pgbench_history) sums (total)""",
    "an order's total is the sum of its lines": """
        SELECT count(*)
          FROM shop.orders o
          FULL JOIN (SELECT order_id, sum(amount) AS total FROM shop.order_lines GROUP BY order_id) l
            ON l.order_id = o.id
         WHERE o.total IS DISTINCT FROM l.total""",
    "a product has a shelf of its own": "SELECT count(*) - count(DISTINCT shelf) FROM shop.products",
}


def broken_invariants(dsn: str) -> list[str]:
    """What the shop's own rules say against this database; empty where nothing does."""
    with psycopg.connect(dsn) as conn:
        found = {rule: _row(conn.execute(query.encode()))[0] for rule, query in INVARIANTS.items()}
    return [f"not true {count} times: {rule}" for rule, count in found.items() if count]


def _row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    row = cursor.fetchone()
    assert row is not None
    return row


def _states(cursor: psycopg.Cursor[tuple[Any, ...]]) -> list[OrderState]:
    return [OrderState(*row) for row in cursor]
