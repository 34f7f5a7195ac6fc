-- Which keys a full segment may hold: a bitmap, see stores/pg_keys.py; NULL = nobody knows.
ALTER TABLE cronoq_segments ADD COLUMN keys bytea;
ALTER TABLE cronoq_segments ALTER COLUMN keys SET STORAGE EXTERNAL;
