-- # What Prisma sends. `tests/clients/strings.py` says how this file is read.
SELECT pg_advisory_lock(72707369)
CREATE TABLE "_prisma_migrations" ("id" VARCHAR(36) PRIMARY KEY NOT NULL, "checksum" VARCHAR(64) NOT NULL, "finished_at" TIMESTAMPTZ, "migration_name" VARCHAR(255) NOT NULL, "logs" TEXT, "rolled_back_at" TIMESTAMPTZ, "started_at" TIMESTAMPTZ NOT NULL DEFAULT now(), "applied_steps_count" INTEGER NOT NULL DEFAULT 0)
-- {
-- CreateEnum
CREATE TYPE "Role" AS ENUM ('USER', 'ADMIN', 'GONE');

-- CreateTable
CREATE TABLE "User" (
    "id" SERIAL NOT NULL,
    "email" TEXT NOT NULL,
    "role" "Role" NOT NULL DEFAULT 'USER',
    "roles" "Role"[] DEFAULT ARRAY['USER']::"Role"[],
    "createdAt" TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP,

    CONSTRAINT "User_pkey" PRIMARY KEY ("id")
);

-- CreateTable
CREATE TABLE "_UserFriends" (
    "A" INTEGER NOT NULL,
    "B" INTEGER NOT NULL
);

-- CreateIndex
CREATE UNIQUE INDEX "User_email_key" ON "User"("email");
CREATE UNIQUE INDEX "_UserFriends_AB_unique" ON "_UserFriends"("A", "B");
CREATE INDEX "_UserFriends_B_index" ON "_UserFriends"("B");

-- AddForeignKey
ALTER TABLE "_UserFriends" ADD CONSTRAINT "_UserFriends_A_fkey" FOREIGN KEY ("A") REFERENCES "User"("id") ON DELETE CASCADE ON UPDATE CASCADE;
-- }
INSERT INTO "User" ("email", "role") SELECT i || '@x', CASE WHEN i % 3 = 0 THEN 'ADMIN' ELSE 'USER' END::"Role" FROM generate_series(1, 100) i
INSERT INTO "_UserFriends" SELECT i, i % 7 + 1 FROM generate_series(1, 100) i

-- # While a pipeline follows
-- followed

SELECT pg_advisory_lock(72707369)
INSERT INTO "_prisma_migrations" ("id", "checksum", "migration_name") VALUES ('1', 'c', '2024_roles')
-- {
-- AlterEnum
BEGIN;
CREATE TYPE "Role_new" AS ENUM ('USER', 'ADMIN', 'OWNER');
ALTER TABLE "public"."User" ALTER COLUMN "role" DROP DEFAULT;
ALTER TABLE "public"."User" ALTER COLUMN "roles" DROP DEFAULT;
ALTER TABLE "User" ALTER COLUMN "role" TYPE "Role_new" USING ("role"::text::"Role_new");
ALTER TABLE "User" ALTER COLUMN "roles" TYPE "Role_new"[] USING ("roles"::text::"Role_new"[]);
ALTER TYPE "Role" RENAME TO "Role_old";
ALTER TYPE "Role_new" RENAME TO "Role";
DROP TYPE "public"."Role_old";
ALTER TABLE "User" ALTER COLUMN "role" SET DEFAULT 'USER';
ALTER TABLE "User" ALTER COLUMN "roles" SET DEFAULT ARRAY['USER']::"Role"[];
COMMIT;
-- }
UPDATE "_prisma_migrations" SET "applied_steps_count" = "applied_steps_count" + 1 WHERE "id" = '1'
UPDATE "_prisma_migrations" SET "finished_at" = now() WHERE "id" = '1'
ALTER TYPE "Role" ADD VALUE 'GUEST'
UPDATE "User" SET "role" = 'GUEST', "roles" = '{GUEST,OWNER}' WHERE "id" < 20
-- {
/*
  Warnings:

  - You are about to drop the column `createdAt` on the `User` table. All the data in the column will be lost.
  - A unique constraint covering the columns `[a,b]` will be added; it's "fine".
*/
-- AlterTable
ALTER TABLE "User" DROP COLUMN "createdAt",
ADD COLUMN     "name" TEXT,
ADD COLUMN     "score" DECIMAL(65,30) NOT NULL DEFAULT 0.1,
ALTER COLUMN "email" DROP NOT NULL;

-- CreateTable
CREATE TABLE "Post" (
    "id" TEXT NOT NULL,
    "authorId" INTEGER NOT NULL,
    "data" JSONB,
    "tags" TEXT[],
    "updatedAt" TIMESTAMP(3) NOT NULL,

    CONSTRAINT "Post_pkey" PRIMARY KEY ("id")
);

-- CreateIndex
CREATE INDEX "Post_tags_idx" ON "Post" USING GIN ("tags");
CREATE UNIQUE INDEX "Post_id_authorId_key" ON "Post"("id", "authorId" DESC);

-- AddForeignKey
ALTER TABLE "Post" ADD CONSTRAINT "Post_authorId_fkey" FOREIGN KEY ("authorId") REFERENCES "User"("id") ON DELETE RESTRICT ON UPDATE CASCADE;
-- }
INSERT INTO "Post" SELECT 'c' || i, i, jsonb_build_object('n', i), ARRAY['a', NULL, ''], now() FROM generate_series(1, 90) i
-- {
ALTER TABLE "_UserFriends" ADD CONSTRAINT "_UserFriends_AB_pkey" PRIMARY KEY ("A", "B");

-- DropIndex
DROP INDEX "_UserFriends_AB_unique";
-- }
DELETE FROM "_UserFriends" WHERE "B" = 3
-- {
ALTER TABLE "Post" DROP CONSTRAINT "Post_authorId_fkey";
ALTER TABLE "Post" DROP CONSTRAINT "Post_pkey",
DROP COLUMN "id",
ADD COLUMN     "id" SERIAL NOT NULL,
ADD CONSTRAINT "Post_pkey" PRIMARY KEY ("id");
ALTER TABLE "User" RENAME COLUMN "name" TO "fullName";
ALTER INDEX "Post_tags_idx" RENAME TO "Post_labels_idx";
-- }
SELECT pg_advisory_unlock(72707369)
