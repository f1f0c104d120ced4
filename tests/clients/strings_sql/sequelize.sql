-- # What Sequelize sends. `tests/clients/strings.py` says how this file is read.
CREATE TABLE IF NOT EXISTS "SequelizeMeta" ("name" VARCHAR(255) NOT NULL UNIQUE , PRIMARY KEY ("name"));
DO 'BEGIN CREATE TYPE "public"."enum_Users_status" AS ENUM(''active'', ''pending''); EXCEPTION WHEN duplicate_object THEN null; END';
CREATE TABLE IF NOT EXISTS "Users" ("id"   SERIAL , "name" VARCHAR(255), "status" "public"."enum_Users_status" DEFAULT 'pending', "tags" VARCHAR(255)[] DEFAULT ARRAY[]::VARCHAR(255)[], "age" INTEGER, "createdAt" TIMESTAMP WITH TIME ZONE NOT NULL, PRIMARY KEY ("id"));
INSERT INTO "Users" ("name","age","createdAt") SELECT 'u' || i, i, now() FROM generate_series(1, 100) i;

-- # While a pipeline follows
-- followed

START TRANSACTION;
DO 'BEGIN CREATE TYPE "public"."enum_Users_status" AS ENUM(''active'', ''pending''); EXCEPTION WHEN duplicate_object THEN null; END';
ALTER TYPE "public"."enum_Users_status" ADD VALUE 'banned' AFTER 'active'
COMMIT;
ALTER TABLE "Users" ALTER COLUMN "age" SET NOT NULL;ALTER TABLE "Users" ALTER COLUMN "age" SET DEFAULT 0;ALTER TABLE "Users" ALTER COLUMN "age" TYPE BIGINT;
DO 'BEGIN CREATE TYPE "public"."enum_Users_tags" AS ENUM(''x'', ''y''); EXCEPTION WHEN duplicate_object THEN null; END';
ALTER TABLE "Users" ALTER COLUMN "tags" DROP DEFAULT;ALTER TABLE "Users" ALTER COLUMN "tags" TYPE "public"."enum_Users_tags"[] USING ("tags"::text::"public"."enum_Users_tags"[]);
ALTER TABLE "public"."Users" ADD COLUMN "bossId" INTEGER REFERENCES "Users" ("id") ON DELETE SET NULL ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE "public"."Users" ADD COLUMN "email" VARCHAR(255) UNIQUE;COMMENT ON COLUMN "Users"."email" IS 'it''s; unique';
UPDATE "Users" SET "bossId"=1,"status"='banned',"tags"='{x,y}' WHERE "id" > 50
CREATE INDEX CONCURRENTLY "users_name_age" ON "Users" ("name", "age" DESC)
ALTER TABLE "Users" RENAME COLUMN "name" TO "fullName";
CREATE OR REPLACE FUNCTION pg_temp.testfunc(OUT response "Users", OUT sequelize_caught_exception text) RETURNS RECORD AS $func_1$ BEGIN INSERT INTO "Users" ("id","fullName","createdAt") VALUES (DEFAULT,'found',now()) RETURNING * INTO response; EXCEPTION WHEN unique_violation THEN GET STACKED DIAGNOSTICS sequelize_caught_exception = PG_EXCEPTION_DETAIL; END $func_1$ LANGUAGE plpgsql; SELECT (testfunc.response)."id", testfunc.sequelize_caught_exception FROM pg_temp.testfunc(); DROP FUNCTION IF EXISTS pg_temp.testfunc();
CREATE TABLE IF NOT EXISTS "Kept" ("id"   SERIAL , "kind" "public"."enum_Users_status", PRIMARY KEY ("id"));
INSERT INTO "Kept" ("kind") VALUES ('banned'), (NULL)
DROP TABLE IF EXISTS "Gone" CASCADE;
DROP TYPE IF EXISTS "public"."enum_Gone_kind";
DROP INDEX IF EXISTS "nothing"
TRUNCATE TABLE "Kept" RESTART IDENTITY CASCADE
INSERT INTO "SequelizeMeta" ("name") VALUES ('20240101-users.js') RETURNING "name";
