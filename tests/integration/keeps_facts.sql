-- What neither pg_dump nor demo/compare shows of a table ({}), or only in part.

-- name: columns
SELECT attname, atttypid::regtype, atttypmod, attnotnull, atthasdef, attidentity, attgenerated, attislocal, attinhcount,
       attcollation::regcollation, attstorage, attcompression, attstattarget, attoptions, attacl
FROM pg_attribute WHERE attrelid = {} AND attnum > 0 AND NOT attisdropped ORDER BY attnum

-- name: table
SELECT relowner::regrole, relpersistence, relkind, reloptions, relacl::text, relrowsecurity, relforcerowsecurity, relreplident,
       reltablespace, relhasrules, relhastriggers, relispartition, reltuples > 0,
       (SELECT t.reloptions FROM pg_class t WHERE t.oid = c.reltoastrelid)
FROM pg_class c WHERE oid = {}

-- name: indexes
SELECT c.relname, pg_get_indexdef(c.oid), c.reloptions, c.reltablespace, c.relowner::regrole, indisunique, indisprimary,
       indisexclusion, indimmediate, indisclustered, indisvalid, indisready, indislive, indisreplident, indnullsnotdistinct,
       ARRAY(SELECT attstattarget FROM pg_attribute a WHERE a.attrelid = c.oid ORDER BY attnum), c.reltuples > 0
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE indrelid = {} ORDER BY 1

-- name: constraints
SELECT conname, contype, condeferrable, condeferred, convalidated, conrelid::regclass::text, confrelid::regclass::text, conislocal,
       coninhcount, connoinherit, pg_get_constraintdef(oid)
FROM pg_constraint WHERE conrelid = {0} OR confrelid = {0} ORDER BY 1, 6

-- name: triggers
SELECT tgname, tgenabled, tgdeferrable, tginitdeferred, pg_get_triggerdef(oid)
FROM pg_trigger WHERE tgrelid = {} AND NOT tgisinternal ORDER BY 1

-- name: rules
SELECT rulename, ev_enabled, is_instead, pg_get_ruledef(oid) FROM pg_rewrite WHERE ev_class = {} ORDER BY 1

-- name: statistics objects
SELECT stxname, stxnamespace::regnamespace, stxowner::regrole, stxstattarget, pg_get_statisticsobjdef(s.oid),
       EXISTS (SELECT FROM pg_statistic_ext_data d WHERE d.stxoid = s.oid)
FROM pg_statistic_ext s WHERE stxrelid = {} ORDER BY 1

-- name: statistics
SELECT staattnum > 0, count(*) FROM pg_statistic WHERE starelid = {} GROUP BY 1

-- name: sequences
SELECT d.deptype, s.seqrelid::regclass::text, s.seqtypid::regtype, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle,
       c.relowner::regrole, c.relacl::text, c.relpersistence
FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid JOIN pg_class c ON c.oid = d.objid
WHERE d.refobjid = {} AND d.deptype IN ('a', 'i') ORDER BY 2

-- name: published
SELECT * FROM pg_publication_tables WHERE schemaname || tablename <> {}::text ORDER BY 1, 2, 3

-- name: children
SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = {} ORDER BY 1

-- name: children's columns
SELECT attrelid::regclass::text, attname, attislocal, attinhcount FROM pg_attribute
WHERE attrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = {}) AND attnum > 0 ORDER BY 1, 2

-- name: children's constraints
SELECT conrelid::regclass::text, conname, conislocal, coninhcount FROM pg_constraint
WHERE conrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = {}) ORDER BY 1, 2

-- name: others' rules and policies
SELECT ev_class::regclass::text, rulename, ev_enabled, {} IS NULL FROM pg_rewrite
WHERE ev_class >= 16384 AND ev_class::regclass::text !~ '^pgddl' ORDER BY 1, 2
