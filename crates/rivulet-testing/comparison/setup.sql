-- The streams of `declare.sql`, for DuckDB.
SET TimeZone = 'UTC';
CREATE TABLE a AS SELECT epoch_ms(ts) AS ts, k, v, d, g
  FROM read_csv('{folder}/a.csv', header = true, columns = {'ts': 'BIGINT', 'k': 'VARCHAR', 'v': 'BIGINT', 'd': 'DOUBLE', 'g': 'BIGINT'});
CREATE TABLE b AS SELECT epoch_ms(ts) AS ts, k, v, d, g
  FROM read_csv('{folder}/b.csv', header = true, columns = {'ts': 'BIGINT', 'k': 'VARCHAR', 'v': 'BIGINT', 'd': 'DOUBLE', 'g': 'BIGINT'});
CREATE TABLE tags AS SELECT * FROM read_csv('{folder}/tags.csv', header = true, columns = {'id': 'BIGINT', 'name': 'VARCHAR', 'weight': 'DOUBLE'});
CREATE MACRO tumbled(seconds) AS TABLE
  SELECT *, epoch_ms((epoch_ms(ts) // (seconds * 1000)) * seconds * 1000) AS window_start,
    epoch_ms((epoch_ms(ts) // (seconds * 1000) + 1) * seconds * 1000) AS window_end FROM a;
CREATE MACRO tumbled_b(seconds) AS TABLE
  SELECT *, epoch_ms((epoch_ms(ts) // (seconds * 1000)) * seconds * 1000) AS window_start,
    epoch_ms((epoch_ms(ts) // (seconds * 1000) + 1) * seconds * 1000) AS window_end FROM b;
CREATE VIEW hopped AS
  SELECT s AS window_start, s + INTERVAL '30 seconds' AS window_end, k, v, d, g, ts
  FROM a, (SELECT unnest([0, 10000, 20000]) AS o), LATERAL (SELECT epoch_ms((epoch_ms(ts) // 10000) * 10000 - o) AS s);
CREATE VIEW cumulated AS
  SELECT window_start, window_start + to_seconds(10 * n) AS window_end, k, v, d, g, ts
  FROM tumbled(60), (SELECT unnest([1, 2, 3, 4, 5, 6]) AS n) WHERE ts < window_start + to_seconds(10 * n);
