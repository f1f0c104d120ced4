-- # What Rails sends. `tests/clients/strings.py` says how this file is read.
SET client_min_messages TO 'warning'
SET standard_conforming_strings = on
SET intervalstyle = iso_8601
SET SESSION timezone TO 'UTC'
CREATE TABLE "schema_migrations" ("version" character varying NOT NULL PRIMARY KEY)
CREATE TABLE "ar_internal_metadata" ("key" character varying NOT NULL PRIMARY KEY, "value" character varying, "created_at" timestamp(6) NOT NULL, "updated_at" timestamp(6) NOT NULL)
SELECT pg_try_advisory_lock(4123)
BEGIN
CREATE TABLE "articles" ("id" bigserial primary key, "title" character varying NOT NULL, "body" text, "published" boolean DEFAULT FALSE NOT NULL, "meta" jsonb DEFAULT '{}', "views" integer, "created_at" timestamp(6) NOT NULL, "updated_at" timestamp(6) NOT NULL)
CREATE INDEX "index_articles_on_title" ON "articles" ("title")
INSERT INTO "schema_migrations" ("version") VALUES ('20240101000001') RETURNING "version"
COMMIT
INSERT INTO "articles" ("title", "created_at", "updated_at") SELECT 'no ' || i, now(), now() FROM generate_series(1, 200) i

-- # While a pipeline follows
-- followed

SELECT pg_try_advisory_lock(4123)
BEGIN
CREATE TABLE "comments" ("id" bigserial primary key, "article_id" bigint NOT NULL, "text" text, "position" integer, "created_at" timestamp(6) NOT NULL, CONSTRAINT "fk_rails_3bf61a60d3" FOREIGN KEY ("article_id") REFERENCES "articles" ("id"))
CREATE INDEX "index_comments_on_article_id" ON "comments" ("article_id")
INSERT INTO "schema_migrations" ("version") VALUES ('20240101000002') RETURNING "version"
COMMIT
CREATE INDEX CONCURRENTLY IF NOT EXISTS "index_articles_on_lower" ON "articles" USING btree (lower(title)) WHERE published
CREATE INDEX CONCURRENTLY IF NOT EXISTS "index_articles_on_lower" ON "articles" USING btree (lower(title)) WHERE published
CREATE INDEX CONCURRENTLY "index_articles_on_meta" ON "articles" USING gin ("meta")
BEGIN
DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_type t JOIN pg_namespace n ON t.typnamespace = n.oid WHERE t.typname = 'article_kind' AND n.nspname = ANY (current_schemas(false))) THEN CREATE TYPE "article_kind" AS ENUM ('news', 'it''s'); END IF; END $$
ALTER TABLE "articles" ADD "kind" article_kind DEFAULT 'news' NOT NULL
ALTER TABLE "articles" ADD "slug" character varying GENERATED ALWAYS AS (lower(title)) STORED
COMMIT
ALTER TABLE "articles" ADD CONSTRAINT "chk_rails_5f" CHECK (views >= 0) NOT VALID
ALTER TABLE "articles" VALIDATE CONSTRAINT "chk_rails_5f"
BEGIN
UPDATE "articles" SET "views"=0 WHERE "views" IS NULL
ALTER TABLE "articles" ALTER COLUMN "views" SET DEFAULT 0
ALTER TABLE "articles" ALTER COLUMN "views" SET NOT NULL
ALTER TABLE "articles" ALTER COLUMN "body" TYPE character varying(5000), ALTER COLUMN "views" TYPE bigint
ALTER TABLE "comments" ADD CONSTRAINT "uniq_rails_1" UNIQUE ("article_id", "position") DEFERRABLE INITIALLY DEFERRED
COMMIT
BEGIN
ALTER TABLE "articles" RENAME TO "posts"
ALTER TABLE "articles_id_seq" RENAME TO "posts_id_seq"
ALTER INDEX "articles_pkey" RENAME TO "posts_pkey"
ALTER INDEX "index_articles_on_title" RENAME TO "index_posts_on_title"
ALTER TABLE "comments" RENAME COLUMN "article_id" TO "post_id"
ALTER INDEX "index_comments_on_article_id" RENAME TO "index_comments_on_post_id"
COMMENT ON TABLE "posts" IS 'It''s "all"'
COMMENT ON COLUMN "posts"."views" IS NULL
COMMIT
BEGIN
ALTER TABLE "comments" DISABLE TRIGGER ALL;ALTER TABLE "posts" DISABLE TRIGGER ALL
DELETE FROM "comments"; DELETE FROM "posts" WHERE "id" > 150;INSERT INTO "comments" ("id", "post_id", "position", "created_at") SELECT i, i, 1, now() FROM generate_series(1, 40) i; INSERT INTO "posts" ("id", "title", "created_at", "updated_at") VALUES (980190962, 'one', now(), now())
ALTER TABLE "comments" ENABLE TRIGGER ALL;ALTER TABLE "posts" ENABLE TRIGGER ALL
COMMIT
-- # and what it does behind them
do $$ declare r record; BEGIN FOR r IN (SELECT FORMAT('UPDATE pg_catalog.pg_constraint SET convalidated=false WHERE conname = ''%1$I'' AND connamespace::regnamespace = ''%2$I''::regnamespace; ALTER TABLE %2$I.%3$I VALIDATE CONSTRAINT %1$I;', constraint_name, table_schema, table_name) AS constraint_check FROM information_schema.table_constraints WHERE constraint_type = 'FOREIGN KEY' AND table_name = 'comments') LOOP EXECUTE (r.constraint_check); END LOOP; END; $$
SELECT setval('"posts_id_seq"', 980190962)
BEGIN
UPDATE "comments" SET "position" = 3 - "position", "post_id" = 1 WHERE "id" IN (1)
COMMIT
SELECT pg_advisory_unlock(4123)
