-- # What Hibernate sends. `tests/clients/strings.py` says how this file is read.
create sequence book_seq start with 1 increment by 50
create table book (id bigint not null, price numeric(38,2), published date, isbn varchar(255) unique, title varchar(255), status varchar(255) check ((status in ('DRAFT','PUBLISHED'))), primary key (id))
create table book_author (book_id bigint not null, author_id uuid not null, primary key (book_id, author_id))
create table author (id uuid not null, born timestamp(6) with time zone, name varchar(255), version integer not null, photo bytea, primary key (id))
alter table if exists book_author drop constraint if exists FKbjqhp85wjv8vpr0beygh6jsgo
alter table if exists book_author add constraint FKbjqhp85wjv8vpr0beygh6jsgo foreign key (author_id) references author
alter table if exists book_author add constraint FKhwgu59n9o80xv75plf9ggj7xn foreign key (book_id) references book
insert into author (id, born, name, version, photo) select gen_random_uuid(), now(), 'n' || i, 0, '\x00ff' from generate_series(1, 60) i
insert into book (id, isbn, price, title, status) select nextval('book_seq') - 49 + i, 'i' || i, i / 7.0, 't', 'DRAFT' from generate_series(1, 60) i
insert into book_author (book_id, author_id) select b.id, a.id from book b, author a limit 300

-- # While a pipeline follows
-- followed

create type book_status as enum ('ARCHIVED','DRAFT','PUBLISHED')
create cast (varchar as book_status) with inout as implicit
create cast (book_status as varchar) with inout as implicit
alter table if exists book add column rank smallint check ((rank between 0 and 2))
alter table if exists book add column subtitle varchar(255), add column state book_status
alter table if exists book alter column title set data type varchar(1000)
alter table if exists book drop constraint if exists book_status_check
alter table if exists book add constraint book_status_check check (status in ('DRAFT','PUBLISHED','ARCHIVED'))
alter table if exists nothing drop constraint if exists FK1
drop table if exists nothing cascade
drop sequence if exists nothing_seq
create sequence revinfo_seq start with 1 increment by 50
create table revinfo (rev integer not null, revtstmp bigint, primary key (rev))
create table book_aud (rev integer not null, revtype smallint, id bigint not null, title varchar(255), primary key (rev, id))
alter table if exists book_aud add constraint FKq4yd4abu5pr4nigwpdvhc4h4g foreign key (rev) references revinfo
comment on column book.rank is 'stars'
begin
select nextval('revinfo_seq')
insert into revinfo (revtstmp, rev) values (1700000000000, 1)
insert into book_aud (revtype, title, rev, id) select 1, title, 1, id from book
update book set title=title || '!', state='DRAFT'::varchar, status='ARCHIVED' where id % 2 = 0
delete from book_author where book_id=2
commit
alter table if exists book_author drop constraint if exists FKbjqhp85wjv8vpr0beygh6jsgo
alter table if exists book_author add constraint FKbjqhp85wjv8vpr0beygh6jsgo foreign key (author_id) references author on delete cascade
delete from author where name = 'n7'
create global temporary table HTE_book(rn_ integer not null, id bigint, primary key (rn_)) on commit delete rows
create index IDXtitle on book (title)
drop sequence if exists book_seq
create sequence book_seq start with 201 increment by 50 cache 3
