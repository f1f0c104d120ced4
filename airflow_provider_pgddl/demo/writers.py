"""Applications that keep writing while their tables are moved, and tell what they noticed of it.

They behave as a decent application does: short transactions, a retry after a deadlock or a serialization failure, and
when the source refuses writes because it has been cut over, the same operation again on the target. Every other error
that an application would not expect is a failure of the move, and is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import errors as pg
from psycopg import sql

Connection = psycopg.Connection[tuple[Any, ...]]

# With prepared statements an application would see "cached plan must not change result type" once a column's type has
# changed under it, with any tool that changes one: these do without.
_SESSION: dict[str, Any] = {
    "prepare_threshold": None,
    "application_name": "shop writer",
    "options": "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres -c statement_timeout=60s",
}

_LOST = (pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow)
_AGAIN = (pg.DeadlockDetected, pg.SerializationFailure)

GIVE_UP_AFTER = 120.0  # seconds for one operation; an application's users have left long before


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that the application does, as one transaction.

    `run` gets a connection in a transaction and a source of chance which is the same at each attempt. What it
    returns is handed to `Traffic.committed` after the commit. `outcomes` are errors that it may bring about itself.
    """

    name: str
    weight: float
    run: Callable[[Connection, random.Random], Any]
    outcomes: tuple[type[psycopg.Error], ...] = ()


@dataclass(slots=True)
class Notes:
    """What the writers noticed. Times are seconds; moments are seconds since the epoch."""

    committed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # outcomes that the application brought about itself
    retried: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    latencies: list[tuple[float, float, str]] = field(default_factory=list)  # (begin, seconds, operation)
    rejected_at: float | None = None  # the first write that the fence turned away
    accepted_at: float | None = None  # the first write that the target took

    @property
    def cut_over_stall(self) -> float | None:
        """From the first write that the source refused to the first that the target took."""
        if self.rejected_at is None or self.accepted_at is None:
            return None
        return self.accepted_at - self.rejected_at

    def longest(self, since: float = 0.0, until: float = float("inf")) -> float:
        """The longest operation that was under way at some moment between the two."""
        overlapping = (s for begin, s, _ in self.latencies.copy() if begin <= until and begin + s >= since)
        return max(overlapping, default=0.0)


class Traffic:
    """Threads that carry out operations at a limited rate, on the first of `dsns` until that one is cut over.

    pipeline, journal: whose cut-over to follow, and where it is recorded (by default in the last of `dsns`).
    on_cut_over: called once the journal records it and before any writer goes on against the target.
    tolerate_lost: a lost connection is reconnected and is no failure (for tests that restart servers).
    rate: operations a second, all threads together.
    """

    def __init__(
        self,
        dsns: Sequence[str],
        *,
        threads: int = 4,
        rate: float = 120.0,
        seed: int | None = None,
        pipeline: str | None = None,
        journal: str | None = None,
        on_cut_over: Callable[[], None] | None = None,
        tolerate_lost: bool = False,
    ) -> None:
        self.seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self.notes = Notes()
        self.accepted = threading.Event()  # the target has taken a first write
        self._dsns = list(dsns)
        self._current = 0
        self._rate = rate / threads
        self._pipeline = pipeline
        self._journal = journal or self._dsns[-1]
        self.on_cut_over = on_cut_over
        self._tolerate_lost = tolerate_lost
        self._threads = [
            threading.Thread(target=self._write, args=(number,), name=f"writer {number}", daemon=True)
            for number in range(threads)
        ]
        self._follower = threading.Thread(target=self._follow_cut_over, name="cut-over", daemon=True)
        self._fenced = threading.Event()
        self._switched = threading.Event()
        self._stopping = threading.Event()
        self._state = threading.Condition()
        self._paused = False
        self._at_work = 0
        self._sessions = threading.local()

    # What a kind of traffic says about itself

    def prepare(self, conn: Connection) -> list[Operation]:
        """Looks around once, before the first operation."""
        raise NotImplementedError

    def committed(self, result: Any) -> None:
        """Learns what an operation did, once it is known to be committed."""

    def unknown(self, result: Any) -> None:
        """Learns what an operation may have done: the connection was lost during its commit."""

    # What one does with it

    def start(self) -> Self:
        with self._connect(0) as conn:
            self._operations = self.prepare(conn)
        for thread in self._threads:
            thread.start()
        if len(self._dsns) > 1 and self._pipeline is not None:
            self._follower.start()
        return self

    def stop(self) -> Notes:
        """Lets each writer finish its operation; one that waits for a cut-over is given up."""
        self._stopping.set()
        self._fenced.set()
        with self._state:
            self._state.notify_all()
        for thread in (*self._threads, self._follower):
            if thread.ident is not None:
                thread.join()
        return self.notes

    def pause(self) -> None:
        """Returns once no writer has a transaction open."""
        with self._state:
            self._paused = True
            self._state.wait_for(lambda: self._at_work == 0)

    def resume(self) -> None:
        with self._state:
            self._paused = False
            self._state.notify_all()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """No writer has a transaction open within this block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    @property
    def cut_over(self) -> bool:
        """Whether the writers go on against the target."""
        return self._switched.is_set()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # One writer

    def _write(self, number: int) -> None:
        chance = random.Random(f"{self.seed}:{number}")
        weights = [operation.weight for operation in self._operations]
        due = time.monotonic()
        try:
            while not self._stopping.is_set():
                due = max(due + chance.expovariate(self._rate), time.monotonic() - 1.0)
                if self._stopping.wait(max(0.0, due - time.monotonic())):
                    break
                (operation,) = chance.choices(self._operations, weights)
                self._carry_out(operation, chance.getrandbits(64))
        except Exception as error:  # noqa: BLE001 - a thread that ends unseen would look like a quiet success
            self._fail(f"a writer ended: {type(error).__name__}: {error}")
        finally:
            for conn in self._open_connections().values():
                conn.close()

    def _carry_out(self, operation: Operation, seed: int) -> None:
        begin, paused = time.time(), 0.0
        while True:
            paused += self._begin_work()
            try:
                if self._stopping.is_set():
                    return
                done = self._attempt(operation, seed)
            finally:
                self._end_work()
            if done:
                self.notes.latencies.append((begin, time.time() - begin - paused, operation.name))
                return
            if time.time() - begin - paused > GIVE_UP_AFTER:
                self._fail(f"{operation.name}: gave up after {GIVE_UP_AFTER:.0f} s")
                return
            if self._fenced.is_set() and not self._switched.is_set():
                # The fence may also go away again, when the cut-over did not come off: look at the source as well.
                self._switched.wait(0.1)

    def _attempt(self, operation: Operation, seed: int) -> bool:
        """Whether the operation is over with; if not, it is to be tried again."""
        side, result, committing = self._current, None, False
        conn: Connection | None = None
        try:
            conn = self._connection(side)
            result = operation.run(conn, random.Random(seed))
            committing = True
            conn.commit()
        except psycopg.Error as error:
            if conn is not None and not conn.closed:
                # Lost in between, it is rolled back just the same, and the next operation connects again.
                with contextlib.suppress(psycopg.OperationalError):
                    conn.rollback()
            return self._judge(operation, error, result if committing else None)
        self.notes.committed[operation.name] += 1
        if side == 0 and self._fenced.is_set() and not self._switched.is_set():
            self._fenced.clear()  # the source takes writes again
        if side > 0 and self.notes.accepted_at is None:
            self.notes.accepted_at = time.time()
            self.accepted.set()
        self.committed(result)
        return True

    def _judge(self, operation: Operation, error: psycopg.Error, uncertain: Any) -> bool:
        kind = type(error).__name__
        if _is_fence(error):
            self.notes.retried["fence"] += 1
            if self.notes.rejected_at is None:
                self.notes.rejected_at = time.time()
            self._fenced.set()
            return False
        if isinstance(error, _AGAIN):
            self.notes.retried[kind] += 1
            return False
        if isinstance(error, operation.outcomes):
            self.notes.refused[kind] += 1
            return True
        if isinstance(error, _LOST) or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None):
            self.notes.retried[kind] += 1
            if uncertain is not None:
                self.unknown(uncertain)
            if not self._tolerate_lost:
                self._fail(f"{operation.name}: lost its connection: {error}")
                return True
            self._stopping.wait(0.05)
            return uncertain is not None
        self._fail(f"{operation.name}: {kind} ({error.sqlstate}): {error.diag.message_primary or error}")
        return True

    def _fail(self, what: str) -> None:
        self.notes.failures.append(what)

    # Pausing

    def _begin_work(self) -> float:
        """Waits while the writers are paused, and says for how long."""
        begin = time.monotonic()
        with self._state:
            self._state.wait_for(lambda: not self._paused or self._stopping.is_set())
            self._at_work += 1
        return time.monotonic() - begin

    def _end_work(self) -> None:
        with self._state:
            self._at_work -= 1
            self._state.notify_all()

    # Cut-over

    def _follow_cut_over(self) -> None:
        """Once the fence has turned a write away: when is the target ours to write to?"""
        try:
            while not self._stopping.is_set():
                self._fenced.wait()
                if self._is_cut_over():
                    if self.on_cut_over is not None:
                        self.on_cut_over()
                    self._current = 1
                    self._switched.set()
                    return
                self._stopping.wait(0.01)
        except Exception as error:  # noqa: BLE001 - as for a writer
            self._fail(f"the cut-over could not be followed: {type(error).__name__}: {error}")

    def _is_cut_over(self) -> bool:
        with psycopg.connect(self._journal, autocommit=True) as conn:
            while self._fenced.is_set() and not self._stopping.is_set():
                with contextlib.suppress(pg.UndefinedTable, pg.InvalidSchemaName):
                    query = "SELECT cut_over_at IS NOT NULL FROM pgddl.pipelines WHERE pipeline = %s"
                    row = conn.execute(query, [self._pipeline]).fetchone()
                    if row is not None and row[0]:
                        return True
                self._stopping.wait(0.01)
        return False

    # Connections, one a thread and side

    def _connect(self, side: int) -> Connection:
        return psycopg.connect(self._dsns[side], **_SESSION)

    def _open_connections(self) -> dict[int, Connection]:
        if not hasattr(self._sessions, "connections"):
            self._sessions.connections = {}
        connections: dict[int, Connection] = self._sessions.connections
        return connections

    def _connection(self, side: int) -> Connection:
        connections = self._open_connections()
        if side not in connections or connections[side].closed:
            connections[side] = self._connect(side)
        return connections[side]


def _is_fence(error: psycopg.Error) -> bool:
    return isinstance(error, pg.ReadOnlySqlTransaction) and (error.diag.message_primary or "").startswith("pgddl:")


# The shop


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


# Any table

_INTROSPECT = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), format_type(coalesce(base.oid, t.oid), NULL),
       a.attgenerated <> '' , a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%%', false),
       a.attidentity = 'a',
       EXISTS (SELECT FROM pg_catalog.pg_constraint f
                WHERE f.conrelid = c.oid AND f.contype = 'f' AND a.attnum = ANY (f.conkey)),
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indnkeyatts = 1
                  AND i.indkey[0] = a.attnum AND i.indpred IS NULL),
       coalesce(a.attnum = ANY (key.indkey), false),
       pg_table_size(c.oid)
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_type base ON base.oid = t.typbasetype
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  LEFT JOIN LATERAL (SELECT i.indkey FROM pg_catalog.pg_index i
                      WHERE i.indrelid = c.oid AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
                      ORDER BY NOT i.indisprimary, i.indexrelid LIMIT 1) key ON true
 WHERE c.oid = %s::regclass
 ORDER BY a.attnum
"""

_FRESH = {
    "smallint": "floor(random() * 32000)",
    "integer": "floor(random() * 2000000000)",
    "bigint": "floor(random() * 1e15)",
    "numeric": "round((random() * 9)::numeric, 2)",
    "real": "random() * 1000",
    "double precision": "random() * 1000",
    "text": "left(md5(random()::text), 9)",
    "character varying": "left(md5(random()::text), 9)",
    "character": "left(md5(random()::text), 9)",
    "bytea": "decode(md5(random()::text), 'hex')",
    "boolean": "random() < 0.5",
    "uuid": "md5(random()::text)::uuid",
    "date": "'2020-01-01'::date + floor(random() * 3000)::integer",
    "timestamp without time zone": "'2020-01-01'::timestamp + random() * interval '3000 days'",
    "timestamp with time zone": "'2020-01-01+00'::timestamptz + random() * interval '3000 days'",
    "time without time zone": "'00:00'::time + random() * interval '1 day'",
    "interval": "random() * interval '1 day'",
    "json": "json_build_object('r', random())",
    "jsonb": "jsonb_build_object('r', random())",
}

# A random writer walks into constraints all the time; that says nothing about us.
_OUTCOMES = (pg.IntegrityError, psycopg.DataError)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    base: str
    generated: bool
    serial: bool
    always: bool
    foreign: bool
    unique: bool
    key: bool

    @property
    def fresh(self) -> sql.Composable | None:
        """An expression for a value that is likely to be new; None for types that are only copied around."""
        expression = _FRESH.get(self.base)
        return None if expression is None else sql.SQL(f"({expression})::{self.type}")


class Table:
    """A table, and statements that change a random row of it."""

    def __init__(self, conn: Connection, schema: str, name: str) -> None:
        self.name = sql.Identifier(schema, name)
        rows = conn.execute(_INTROSPECT, [self.name.as_string(conn)]).fetchall()
        if not rows:
            raise ValueError(f"{schema}.{name} has no columns")
        self.columns = [Column(*row[:9]) for row in rows]
        self.large = rows[0][9] > 4 << 20
        self.key = [column for column in self.columns if column.key]
        # Without a key a row is where it is, as long as nobody moves it.
        self._row_id = _names(self.key) if self.key else sql.SQL("ctid")

    def insert(self, conn: Connection, chance: random.Random) -> None:
        columns = [c for c in self.columns if not c.generated and not c.serial]
        if not columns:
            conn.execute(sql.SQL("INSERT INTO {} DEFAULT VALUES").format(self.name))
            return
        values = [self._like_another(column, chance) for column in columns]
        done = conn.execute(
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM (SELECT * FROM {} ORDER BY random() LIMIT 1) s").format(
                self.name, _names(columns), sql.SQL(", ").join(values), self._some()
            )
        )
        if not done.rowcount:
            fresh = sql.SQL(", ").join(column.fresh or sql.SQL("DEFAULT") for column in columns)
            conn.execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(self.name, _names(columns), fresh))

    def update(self, conn: Connection, chance: random.Random) -> None:
        columns = [c for c in self.columns if not (c.generated or c.always or c.key or c.unique)]
        if columns:
            self._set(conn, chance.sample(columns, min(len(columns), chance.randint(1, 3))))

    def rekey(self, conn: Connection, chance: random.Random) -> None:
        columns = [c for c in self.key if not (c.always or c.generated)]
        if columns:
            self._set(conn, [chance.choice(columns)])

    def delete(self, conn: Connection, chance: random.Random) -> None:  # noqa: ARG002
        conn.execute(sql.SQL("DELETE FROM {} WHERE ({}) = ({})").format(self.name, self._row_id, self._one()))

    def swap(self, conn: Connection, chance: random.Random) -> None:
        """Two rows change places in a unique column, by way of a value that nobody has."""
        columns = [c for c in self.columns if c.unique and not (c.generated or c.always) and c.fresh is not None]
        if not columns:
            return
        column = chance.choice(columns)
        name = sql.Identifier(column.name)
        # As text: not every value has a counterpart here.
        rows = conn.execute(
            sql.SQL(
                "SELECT {0}::text FROM {1} WHERE {0} IN (SELECT {0} FROM {2} ORDER BY random() LIMIT 2) FOR UPDATE"
            ).format(name, self.name, self._some())
        ).fetchall()
        if len(rows) != 2:  # children of the table may have the same values again
            return
        (one,), (other,) = rows
        spare = _row(conn.execute(sql.SQL("SELECT ({})::text").format(column.fresh)))[0]
        statement = sql.SQL("UPDATE {} SET {} = {}::{} WHERE {} = {}::{}")
        kind = sql.SQL(column.type)
        for value, previous in ((spare, one), (one, other), (other, spare)):
            # Literals, since a name may have a percent sign in it.
            conn.execute(statement.format(self.name, name, sql.Literal(value), kind, name, sql.Literal(previous), kind))

    def truncate(self, conn: Connection, chance: random.Random) -> None:  # noqa: ARG002
        conn.execute(sql.SQL("TRUNCATE {}").format(self.name))

    def _like_another(self, column: Column, chance: random.Random) -> sql.Composable:
        """A value for a row that is made after another one, `s`."""
        copied = sql.SQL("s.{}").format(sql.Identifier(column.name))
        if column.foreign:
            return self._drawn(column) if column.key or column.unique else copied
        new = column.key or column.unique or chance.random() < 0.3
        return column.fresh or copied if new else copied

    def _set(self, conn: Connection, columns: Sequence[Column]) -> None:
        parts = [
            sql.SQL("{} = {}").format(
                sql.Identifier(column.name),
                self._drawn(column) if column.foreign else column.fresh or self._drawn(column),
            )
            for column in columns
        ]
        conn.execute(
            sql.SQL("UPDATE {} SET {} WHERE ({}) = ({})").format(
                self.name, sql.SQL(", ").join(parts), self._row_id, self._one()
            )
        )

    def _one(self) -> sql.Composed:
        return sql.SQL("SELECT {} FROM {} ORDER BY random() LIMIT 1").format(self._row_id, self._some())

    def _drawn(self, column: Column) -> sql.Composed:
        """The value that some other row has."""
        return sql.SQL("(SELECT d.{} FROM {} d ORDER BY random() LIMIT 1)").format(
            sql.Identifier(column.name), self.name
        )

    def _some(self) -> sql.Composable:
        """Enough rows to choose from, without reading all of a large table."""
        return sql.SQL("{} TABLESAMPLE SYSTEM (1)").format(self.name) if self.large else self.name


class TableWriters(Traffic):
    """Random inserts, updates, deletes, key changes and swaps on any tables; what constraints refuse is normal.

    truncate: tables that are truncated now and then.
    """

    def __init__(
        self,
        dsns: Sequence[str],
        tables: Sequence[tuple[str, str]],
        *,
        truncate: Sequence[tuple[str, str]] = (),
        **options: Any,
    ) -> None:
        super().__init__(dsns, **options)
        self._names = list(tables)
        self._truncated = list(truncate)

    def prepare(self, conn: Connection) -> list[Operation]:
        self._tables = [Table(conn, *name) for name in self._names]
        self._scratch = [Table(conn, *name) for name in self._truncated]
        verbs = {"insert": 5.0, "update": 6.0, "delete": 2.0, "rekey": 2.0, "swap": 2.0}
        operations = [Operation(verb, weight, self._on_one(verb), _OUTCOMES) for verb, weight in verbs.items()]
        operations.append(Operation("several", 2.0, self._on_several, _OUTCOMES))
        if self._scratch:
            operations.append(Operation("truncate", 0.3, self._truncate, _OUTCOMES))
        return operations

    def _on_one(self, verb: str) -> Callable[[Connection, random.Random], None]:
        def run(conn: Connection, chance: random.Random) -> None:
            self._change(conn, chance, verb)

        return run

    def _on_several(self, conn: Connection, chance: random.Random) -> None:
        for _ in range(chance.randint(2, 5)):
            self._change(conn, chance, chance.choice(["insert", "update", "delete", "rekey"]))

    def _truncate(self, conn: Connection, chance: random.Random) -> None:
        chance.choice(self._scratch).truncate(conn, chance)

    def _change(self, conn: Connection, chance: random.Random, verb: str) -> None:
        conn.execute("SELECT setseed(%s)", [chance.uniform(-1, 1)])
        getattr(chance.choice(self._tables), verb)(conn, chance)


def _names(columns: Sequence[Column]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
