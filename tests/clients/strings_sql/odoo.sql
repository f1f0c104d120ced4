-- # What Odoo sends. `tests/clients/strings.py` says how this file is read.
BEGIN
CREATE TABLE "res_partner" (id SERIAL NOT NULL, PRIMARY KEY(id))
COMMENT ON TABLE "res_partner" IS 'Contact'
ALTER TABLE "res_partner" ADD COLUMN "name" varchar
COMMENT ON COLUMN "res_partner"."name" IS 'Name'
ALTER TABLE "res_partner" ADD COLUMN "parent_id" int4
ALTER TABLE "res_partner" ADD COLUMN "type" varchar
ALTER TABLE "res_partner" ADD COLUMN "credit" numeric
ALTER TABLE "res_partner" ADD COLUMN "write_date" timestamp
CREATE TABLE "res_partner_category" (id SERIAL NOT NULL, PRIMARY KEY(id))
ALTER TABLE "res_partner" ADD FOREIGN KEY ("parent_id") REFERENCES "res_partner"("id") ON DELETE set null
COMMIT
INSERT INTO "res_partner" ("name", "type", "parent_id") SELECT 'p' || i, 'contact', nullif(i / 2, 0) FROM generate_series(1, 120) i

-- # While a pipeline follows
-- followed

BEGIN
SAVEPOINT "2f3c"
ALTER TABLE "res_partner" ALTER COLUMN "name" SET NOT NULL
RELEASE SAVEPOINT "2f3c"
SAVEPOINT "9a11"
ALTER TABLE "res_partner" ADD CONSTRAINT "res_partner_check_name" CHECK( (type='contact' AND name IS NOT NULL) or (type!='contact') )
COMMENT ON CONSTRAINT "res_partner_check_name" ON "res_partner" IS 'CHECK( (type=''contact'' AND name IS NOT NULL) or (type!=''contact'') )'
RELEASE SAVEPOINT "9a11"
SAVEPOINT "0b"
ALTER TABLE "res_partner" ADD COLUMN "rolled_back" int4
ROLLBACK TO SAVEPOINT "0b"
CREATE TABLE "res_partner_res_partner_category_rel" ("category_id" INTEGER NOT NULL, "partner_id" INTEGER NOT NULL, PRIMARY KEY("category_id", "partner_id"))
COMMENT ON TABLE "res_partner_res_partner_category_rel" IS 'RELATION BETWEEN res_partner_category AND res_partner'
CREATE INDEX ON "res_partner_res_partner_category_rel" ("partner_id", "category_id")
ALTER TABLE "res_partner_res_partner_category_rel" ADD FOREIGN KEY ("partner_id") REFERENCES "res_partner"("id") ON DELETE cascade
ALTER TABLE "res_partner_res_partner_category_rel" ADD FOREIGN KEY ("category_id") REFERENCES "res_partner_category"("id") ON DELETE cascade
COMMIT
BEGIN
ALTER TABLE "res_partner" ALTER COLUMN "name" TYPE jsonb USING CASE WHEN "name" IS NOT NULL THEN jsonb_build_object('en_US', "name"::varchar) END
CREATE INDEX IF NOT EXISTS "res_partner__name_index" ON "res_partner" USING gin ("name" jsonb_path_ops)
CREATE INDEX IF NOT EXISTS "res_partner__type_index" ON "res_partner" ("type") WHERE "type" IS NOT NULL
ALTER TABLE "res_partner" RENAME COLUMN "credit" TO "credit_moved0"
ALTER TABLE "res_partner" ADD COLUMN "credit" float8
UPDATE "res_partner" SET "credit" = "credit_moved0"::float8
ALTER TABLE "res_partner" DROP COLUMN "credit_moved0" CASCADE
COMMIT
INSERT INTO "res_partner_category" DEFAULT VALUES
INSERT INTO "res_partner_res_partner_category_rel" SELECT 1, id FROM "res_partner" WHERE id % 3 = 0 ON CONFLICT DO NOTHING
CREATE SEQUENCE ir_sequence_001 INCREMENT BY 1 START WITH 1
SELECT nextval('ir_sequence_001')
ALTER SEQUENCE ir_sequence_001 INCREMENT BY 2 RESTART WITH 10
BEGIN
DROP VIEW IF EXISTS report_partner
CREATE or REPLACE VIEW report_partner AS (SELECT p.id, p.type, count(c.id) AS children FROM res_partner p LEFT JOIN res_partner c ON c.parent_id = p.id WHERE p.type IN ('contact', 'invoice') GROUP BY p.id, p.type)
COMMIT
ALTER TABLE "res_partner" DROP CONSTRAINT "res_partner_parent_id_fkey"
ALTER TABLE "res_partner" ADD CONSTRAINT "res_partner_parent_id_fkey" FOREIGN KEY ("parent_id") REFERENCES "res_partner"("id") ON DELETE restrict DEFERRABLE INITIALLY DEFERRED
ALTER TABLE "res_partner" ADD CONSTRAINT "res_partner_uniq" UNIQUE ("type", "id") DEFERRABLE INITIALLY IMMEDIATE
BEGIN
SET CONSTRAINTS ALL DEFERRED
UPDATE "res_partner" SET "parent_id" = 5000 WHERE "id" = 7
INSERT INTO "res_partner" ("id", "name", "type") VALUES (5000, '{"en_US": "late", "de_DE": "spät"}', NULL)
COMMIT
DELETE FROM "res_partner_category" WHERE id = 1
SELECT 1 FROM "res_partner" WHERE id = 1 FOR NO KEY UPDATE SKIP LOCKED
DROP TABLE "res_partner_res_partner_category_rel" CASCADE
