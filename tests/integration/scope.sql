-- What clients send, one string a paragraph: see test_ddl_scope.py.

-- name: defaults
create table x (id serial primary key, c text default 'commit;', d timestamptz default now())

-- name: many
create table x(id int); insert into x values (1); alter table x add b int default 3; create index on x(b);
comment on column x.b is 'a;b'

-- name: create, drop, create
begin; create table x(id int); drop table x; create table x(id int, b int); commit

-- name: no-ops
create table if not exists t(z int); create table x(id int); create table if not exists x(z int)

-- name: temporary
create temp table x(id int); create table app.x(id int); drop table x; alter table x add y int

create temp table tmp(a int, b text); create table y (like tmp); create temp view w as select * from t

-- name: savepoints
begin; create table x(id int); savepoint s; alter table x add b int; rollback to s; alter table x add c int; commit

-- name: what old rows show
alter table t add ts timestamptz default now(), add n int not null default 5, add w text default current_user

alter table t add d date default 'today', add neg int default -5, add arr int[] default '{1,2}'

create domain dd as timestamptz default now(); alter table t add x dd

create table p(id int) partition by list(id); create table p1 partition of p for values in (1);
insert into p values (1); alter table p add ts timestamptz default now()

-- name: cascade of a table
drop table t cascade

-- name: cascade of a column
alter table t drop column a cascade

-- name: cascade of a constraint
alter table t drop constraint t_pkey cascade

-- name: cascade of a type
create table m (id int, mood mood); drop type mood cascade

-- name: cascade of a sequence
create sequence s; alter table t alter id set default nextval('s')

drop sequence s cascade

-- name: cascade of a schema
create table x(id int references u); drop schema app cascade

-- name: range types
create type r as range (subtype = int4); create table x (r r); drop type r cascade

-- name: renames
alter table t rename to t2; alter table t2 rename column a to b; alter table t2 rename constraint t_pkey to p

alter index p rename to p2; alter view v rename to v2; alter view v2 rename column a to z

alter table t2 rename to t9; create table t2(id int); alter table t2 rename to t8; alter table t9 rename to t2

alter schema app rename to app_2; create table app_2.x(id int); alter schema app_2 rename to app

-- name: moves
drop table other.t; alter table t set schema other; alter view v set schema other

alter function f(int) set schema other; alter type mood add value 'bad' before 'good'

alter type mood rename value 'good' to 'Good'; alter type mood set schema other

-- name: two schemas in the path
set search_path = other, app; create table z(id int references u); alter table t add k int; drop table t;
alter table t add kk int; create view t as select * from t; drop view if exists t, nix cascade

-- name: partitions
create table p(id int, k int, primary key(id,k)) partition by range (k)

create table p1 partition of p for values from (0) to (10); create table p2 (like p including all)

alter table p attach partition p2 for values from (10) to (20)

alter table p detach partition p1

alter table p detach partition p2 concurrently

create index on p(k)

-- name: inheritance
create table c (z int) inherits (t); alter table c no inherit t; alter table c inherit t

-- name: functions
create function g(a t, b t.id%type, c mood default 'good') returns table(x mood, y t) language sql as $$ select 'good'::mood, t from t; $$;
comment on function g(t, int, mood) is 'x'

alter function g(t, int, mood) rename to h; alter function h cost 5; drop function h

create function k() returns bigint begin atomic with t as (select 1) select count(*) from t, u; end

create procedure pr(x int) language sql as 'select 1'; drop procedure pr

create aggregate ag(int) (sfunc = int4pl, stype = int); drop aggregate ag(int)

-- name: triggers, rules, policies
create trigger x before insert or update of a on t for each row when (new.a is not null) execute function tr();
alter trigger x on t rename to y; alter table t enable always trigger y; comment on trigger y on t is 'x'

create rule r as on insert to t do also (insert into u select new.id; delete from u where u.id = new.id);
alter rule r on t rename to r2

create policy p on t to public using (a = (select max(a) from u join t on true where exists (select from v)));
alter table t enable row level security; alter policy p on t rename to p2

drop trigger y on t; drop rule r2 on t; drop policy p2 on t

-- name: views
create view w as with t as (select 1 as q) select t.q from t, u for update of u

create view w2 as select t.* from t join u on u.t_id = t.id where exists (select from v)

create or replace view w2 as select t.*, 1 as one from t

create materialized view m as select * from t; create unique index on m(id); drop materialized view m

create recursive view rv(n) as select 1 union all select n + 1 from rv where n < 3

-- name: comments
comment on table t is 'x'; comment on column t.a is 'y'; comment on constraint t_pkey on t is 'z';
comment on index t_pkey is 'i'; comment on view v is 'v'; comment on schema app is 's'

-- name: domains
create domain d as int constraint c check (value > 0); comment on constraint c on domain d is 'dd';
alter domain d rename constraint c to c2; alter domain d drop constraint c2; alter domain d set default 3;
alter domain d set schema other

-- name: composite types
create type c as (a int, b text); alter type c add attribute e int; alter type c rename attribute e to g

create table ty of c; alter type c drop attribute g cascade; create table tt (x c, y c[])

drop type c cascade

-- name: sequences
create sequence s; alter sequence s owned by t.id; alter sequence s increment 5; alter sequence s rename to s2

create table i (id int generated always as identity (sequence name is_ start 5), x int generated always as (id*2) stored);
alter table i alter id set increment 3

-- name: options
create table x (id int primary key, e int4range, c text collate "C" check (f(id) > 0), d int default f(3), exclude using gist (e with &&)) with (fillfactor = 70)

create index on x (f(id)) where f(id) > 1;
alter table x alter c type varchar(20) collate "POSIX" using c::varchar(20), alter c set storage plain, alter d set not null;
alter table x reset (fillfactor)

create table y (like x including all); alter table y replica identity full; alter table y set unlogged

create table z (id int) using heap; create statistics st on id, a from t; alter statistics st rename to st2

-- name: functions that run DDL
create function mk() returns void language plpgsql set search_path = app as $$ begin create table x(id int primary key, m mood);
create view w as select * from x; insert into x values (1);
execute 'alter table x add column b int default 3, add c int references t'; drop view w; create index on x(b);
comment on table app.x is 'hi'; end $$; select mk(); create table after_it (id int)

do $$ begin create table y(id int, b text default 'q'); insert into y values (1,'r'); alter table y add z int; end $$

create function sq() returns void language sql as $$ create table app.z(id int); alter table app.z add b int;
create index on app.z(b) $$; select sq()

-- name: queries that make tables
create table x as select * from t; select 1 as a into y; create table z as table x

-- name: a schema with elements
create schema n create table a(id int primary key) create view b as select * from a; drop schema n cascade

-- name: indexes concurrently
create index concurrently ci on t(a)

drop index concurrently ci

-- name: tables that refer to each other
create table m(id int primary key); create table n(id int primary key, m int references m);
alter table m add n int references n; drop table m, n

-- name: out of scope
create table other.x (id int); create table x (id int, o int references other.t, check (id > 0)); drop table other.x, x

create table y (id int, o int references other.t);
alter table y add constraint k foreign key (id) references other.t, add b int;
alter table y validate constraint k; alter table y drop constraint k

create index on other.t (id); alter table other.t add n int; comment on table other.t is 'x'

create view other.w as select * from t; drop table t cascade

drop schema other cascade
