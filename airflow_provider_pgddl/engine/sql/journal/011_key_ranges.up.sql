-- Ranges of verify are over as many columns of the key as can be ordered: null from the start, and to the end.
ALTER TABLE pgddl.verifications
    ALTER COLUMN low  TYPE text[] USING CASE WHEN low IS NOT NULL THEN ARRAY[low] END,
    ALTER COLUMN high TYPE text[] USING CASE WHEN high IS NOT NULL THEN ARRAY[high] END
