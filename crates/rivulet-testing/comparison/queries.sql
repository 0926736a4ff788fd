-- Each query has a name, and where DuckDB says it in other words those stand behind `-- oracle`.

-- # filter
SELECT ts, k, v FROM a WHERE v > 12 AND d IS NOT NULL AND k <> 'b'

-- # filter of nulls
SELECT g, v FROM a WHERE NOT (v > 3) OR k IS NULL AND d < 1

-- # is distinct from
SELECT k, v, g FROM a WHERE (v > 3) IS DISTINCT FROM true AND g > 8

-- # is not distinct from
SELECT k, v, d, g FROM a WHERE v IS NOT DISTINCT FROM NULL OR k IS NOT DISTINCT FROM 'b' AND g < 4

-- # in list and between
SELECT k, v FROM b WHERE g IN (1, 4, 9) OR v BETWEEN 18 AND 20

-- # case
SELECT CASE WHEN v > 10 THEN 'high' WHEN v IS NULL THEN NULL ELSE 'low' END AS c, count(*) AS n FROM a GROUP BY 1

-- # arithmetic
SELECT v * 2 - g AS x, v % 3 AS y, d * 2 AS z, -v AS w FROM b WHERE k = 'a'

-- # coalesce and nullif
SELECT coalesce(v, -1) AS v, nullif(g, 4) AS g, coalesce(k, 'none') AS k FROM b WHERE g < 6

-- # casts
SELECT CAST(v AS DOUBLE) / 4 AS q, CAST(g AS TEXT) AS t, CAST(CAST(g AS TEXT) AS BIGINT) + 1 AS i, CAST(g > 5 AS BIGINT) AS f FROM b WHERE v > 15

-- # text
SELECT upper(k) AS u, length(k) AS n, k || '-' || k AS t, replace(k, 'a', 'xyz') AS r, count(*) AS c FROM a WHERE k LIKE '%' GROUP BY k

-- # times
SELECT date_trunc('minute', ts) AS minute, extract(second FROM ts) AS s, count(*) AS n FROM b GROUP BY 1, 2
-- oracle
SELECT date_trunc('minute', ts) AS minute, floor(extract(second FROM ts))::BIGINT AS s, count(*) AS n FROM b GROUP BY 1, 2

-- # comparison of times
SELECT count(*) AS n, min(ts) AS first, max(ts) AS last FROM a WHERE ts > TIMESTAMP '2026-01-01 00:01:00' AND ts < TIMESTAMP '2026-01-01 00:02:30'

-- # aggregates of all
SELECT count(*) AS n, sum(v) AS s, min(k) AS l, max(k) AS h, count(v) AS c, avg(v) AS m FROM a

-- # group by
SELECT k, count(*) AS n, sum(v) AS s, min(d) AS l, max(v) AS h, count(DISTINCT g) AS c FROM a GROUP BY k

-- # group by a number with a point
SELECT d, count(*) AS n, avg(g) AS m FROM a GROUP BY d

-- # group by an expression
SELECT v + 1 AS w, g % 2 AS h, count(*) AS n FROM a GROUP BY v + 1, g % 2

-- # having
SELECT k, g, count(*) AS n FROM a GROUP BY k, g HAVING count(*) > 2 AND sum(v) > 5

-- # filter of aggregates
SELECT k, count(*) FILTER (WHERE v > 5) AS n, sum(v) FILTER (WHERE g > 6) AS s, count(DISTINCT g) FILTER (WHERE v > 0) AS c FROM a GROUP BY k

-- # a filter guards its argument
SELECT k, count(*) AS n, sum(100 / g) FILTER (WHERE g > 0) AS s FROM a GROUP BY k
-- oracle
SELECT k, count(*) AS n, sum(CASE WHEN g > 0 THEN 100 // g END) AS s FROM a GROUP BY k

-- # statistics
SELECT k, stddev_samp(v) AS s, var_pop(g) AS p, corr(v, g) AS r, median(g) AS m FROM a WHERE v IS NOT NULL GROUP BY k

-- # truth
SELECT k, bool_and(v > 0) AS every, bool_or(v > 19) AS some FROM a WHERE v IS NOT NULL GROUP BY k

-- # distinct
SELECT DISTINCT k, g FROM b

-- # aggregate of aggregates
SELECT n, count(*) AS m FROM (SELECT k, g, count(*) AS n FROM a GROUP BY k, g) GROUP BY n

-- # extremes of aggregates
SELECT max(n) AS h, min(n) AS l, sum(n) AS s, avg(n) AS m, count(DISTINCT n) AS c FROM (SELECT k, g, count(*) AS n FROM a GROUP BY k, g)

-- # extremes of texts of aggregates
SELECT g, min(m) AS l, max(m) AS h FROM (SELECT g, v, max(k) AS m FROM a GROUP BY g, v) GROUP BY g

-- # union all
SELECT k, v FROM a WHERE g = 3 UNION ALL SELECT k, g FROM b WHERE g = 3

-- # union
SELECT k, g FROM a WHERE v > 10 UNION SELECT k, g FROM b

-- # union of types
SELECT v AS x FROM a WHERE g < 3 UNION ALL SELECT d FROM b WHERE g < 3

-- # aggregate over a union of what changes
SELECT k, sum(n) AS n FROM (SELECT k, count(*) AS n FROM a GROUP BY k UNION ALL SELECT k, count(*) FROM b GROUP BY k) GROUP BY k

-- # join
SELECT x.k, x.v, y.g FROM a AS x JOIN b AS y ON x.k = y.k AND x.v = y.v

-- # join with a condition
SELECT x.k, count(*) AS n, sum(y.v) AS s FROM a AS x JOIN b AS y ON x.k = y.k AND x.g < y.g GROUP BY x.k

-- # join using
SELECT k, g, count(*) AS n FROM a JOIN b USING (k, g) GROUP BY k, g

-- # left join
SELECT x.k, x.v, y.v AS w FROM b AS x LEFT JOIN a AS y ON x.k = y.k AND x.v = y.v AND y.g < 6

-- # right join
SELECT x.k, x.v, y.v AS w, y.k AS l FROM a AS x RIGHT JOIN b AS y ON x.k = y.k AND x.v = y.v AND x.g > 6

-- # full join
SELECT x.k, x.g, y.k AS l, y.n FROM (SELECT DISTINCT k, g FROM a) AS x FULL JOIN (SELECT k, g, count(*) AS n FROM b GROUP BY k, g) AS y ON x.k = y.k AND x.g = y.g AND y.n > 1

-- # full join, key of either side
SELECT coalesce(x.k, y.k) AS k, count(*) AS n FROM (SELECT k, g FROM a WHERE g < 6) AS x FULL JOIN (SELECT k, g FROM b WHERE g > 4) AS y ON x.k = y.k AND x.g = y.g GROUP BY coalesce(x.k, y.k)

-- # left joins in a row
SELECT x.k, x.g, y.n, z.m FROM (SELECT DISTINCT k, g FROM b) AS x LEFT JOIN (SELECT k, count(*) AS n FROM a WHERE v > 15 GROUP BY k) AS y ON x.k = y.k LEFT JOIN (SELECT g, max(v) AS m FROM a WHERE k = 'a' GROUP BY g) AS z ON x.g = z.g

-- # join of three
SELECT x.k, count(*) AS n FROM b AS x JOIN b AS y ON x.k = y.k JOIN a AS z ON y.g = z.g AND z.v > 15 GROUP BY x.k

-- # join of what changes with itself
WITH q AS (SELECT k, g, count(*) AS n FROM a GROUP BY k, g) SELECT x.k, x.n, y.n AS m FROM q AS x JOIN q AS y ON x.k = y.k AND x.g = y.g + 1

-- # semi join
SELECT k, v, g FROM b WHERE EXISTS (SELECT 1 FROM a WHERE a.k = b.k AND a.g = b.g AND a.v > b.v)

-- # anti join
SELECT k, v, g FROM b WHERE NOT EXISTS (SELECT 1 FROM a WHERE a.k = b.k AND a.g = b.g)

-- # in
SELECT k, v, g FROM b WHERE v IN (SELECT v FROM a WHERE g = 7)

-- # in an aggregate
SELECT k, v, g FROM b WHERE g IN (SELECT max(g) FROM a GROUP BY k)

-- # not in
SELECT k, v, g FROM b WHERE g NOT IN (SELECT g FROM a WHERE v > 17)

-- # scalar subquery in WHERE
SELECT k, v FROM b WHERE v > (SELECT avg(v) + 5 FROM a)

-- # scalar subquery in SELECT
SELECT k, g, g - (SELECT max(v) FROM a) AS x FROM b WHERE g < 5

-- # scalar subquery in HAVING
SELECT k, count(*) AS n FROM a GROUP BY k HAVING count(*) > (SELECT avg(m) FROM (SELECT count(*) AS m FROM b GROUP BY k))

-- # scalar subqueries, two
SELECT k, v FROM a WHERE v > (SELECT min(v) FROM b) AND g = (SELECT max(g) FROM b)

-- # correlated subquery
SELECT k, v FROM b WHERE v > (SELECT avg(v) FROM a WHERE a.k = b.k)

-- # correlated count
SELECT k, g, (SELECT count(*) FROM a WHERE a.g = b.g + 3 AND a.k = 'a') AS n FROM b

-- # correlated count of nothing
SELECT k, g FROM b WHERE (SELECT count(*) FROM a WHERE a.g = b.g + 3 AND a.k = 'a') = 0

-- # lookup
SELECT a.v, tags.name FROM a JOIN tags ON tags.id = a.v

-- # lookup of everything
SELECT tags.name, count(*) AS n, sum(a.g) AS s FROM a LEFT JOIN tags ON tags.id = a.v GROUP BY tags.name

-- # lookup without match
SELECT b.v, tags.name FROM b LEFT JOIN tags ON tags.id = b.v WHERE tags.name IS NULL

-- # lookup with a condition
SELECT b.v, tags.name FROM b JOIN tags ON tags.id = b.v AND tags.weight > b.d

-- # tumble
SELECT window_start, window_end, k, count(*) AS n, sum(v) AS s, count(DISTINCT g) AS c FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '60' SECOND)) GROUP BY window_start, window_end, k
-- oracle
SELECT window_start, window_end, k, count(*) AS n, sum(v) AS s, count(DISTINCT g) AS c FROM tumbled(60) GROUP BY ALL

-- # tumble by start
SELECT window_start, count(*) AS n, max(d) AS h FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start
-- oracle
SELECT window_start, count(*) AS n, max(d) AS h FROM tumbled(10) GROUP BY ALL

-- # tumble in GROUP BY
SELECT k, window_end, count(*) AS n FROM a GROUP BY k, tumble(ts, INTERVAL '1 minute') HAVING count(*) > 3
-- oracle
SELECT k, window_end, count(*) AS n FROM tumbled(60) GROUP BY ALL HAVING count(*) > 3

-- # hop
SELECT window_start, k, count(*) AS n, min(v) AS l FROM TABLE(HOP(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '30' SECOND)) WHERE g > 6 GROUP BY window_start, window_end, k
-- oracle
SELECT window_start, k, count(*) AS n, min(v) AS l FROM hopped WHERE g > 6 GROUP BY ALL

-- # rows with windows
SELECT window_start, ts, v FROM TABLE(HOP(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '30' SECOND)) WHERE k = 'b' AND g = 4
-- oracle
SELECT window_start, ts, v FROM hopped WHERE k = 'b' AND g = 4

-- # cumulate
SELECT window_start, window_end, count(*) AS n, sum(v) AS s FROM TABLE(CUMULATE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '60' SECOND)) GROUP BY window_start, window_end
-- oracle
SELECT window_start, window_end, count(*) AS n, sum(v) AS s FROM cumulated GROUP BY ALL

-- # cumulate by start
SELECT window_start, count(*) AS n FROM TABLE(CUMULATE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '60' SECOND)) GROUP BY window_start
-- oracle
SELECT window_start, count(*) AS n FROM cumulated GROUP BY ALL

-- # starts of cumulated windows
SELECT DISTINCT window_start FROM TABLE(CUMULATE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '60' SECOND))
-- oracle
SELECT DISTINCT window_start FROM cumulated

-- # session
SELECT k, window_start, window_end, count(*) AS n FROM TABLE(SESSION(TABLE a PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5' SECOND)) GROUP BY k, window_start, window_end
-- oracle
WITH o AS (SELECT k, ts, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) < INTERVAL '5 seconds' THEN 0 ELSE 1 END AS s FROM a), p AS (SELECT k, ts, sum(s) OVER (PARTITION BY k ORDER BY ts ROWS UNBOUNDED PRECEDING) AS i FROM o) SELECT k, min(ts) AS window_start, max(ts) + INTERVAL '5 seconds' AS window_end, count(*) AS n FROM p GROUP BY k, i

-- # greatest of each window
WITH w AS (SELECT window_start, window_end, k, count(*) AS n FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end, k) SELECT window_start, max(n) AS h, count(*) AS c FROM w GROUP BY window_start, window_end
-- oracle
WITH w AS (SELECT window_start, window_end, k, count(*) AS n FROM tumbled(10) GROUP BY ALL) SELECT window_start, max(n) AS h, count(*) AS c FROM w GROUP BY window_start, window_end

-- # join of windows
SELECT x.window_start, x.k, x.n, y.m FROM (SELECT window_start, window_end, k, count(*) AS n FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '30' SECOND)) GROUP BY window_start, window_end, k) AS x LEFT JOIN (SELECT window_start, window_end, k, max(v) AS m FROM TABLE(TUMBLE(TABLE b, DESCRIPTOR(ts), INTERVAL '30' SECOND)) GROUP BY window_start, window_end, k) AS y ON x.k = y.k AND x.window_start = y.window_start AND x.window_end = y.window_end
-- oracle
SELECT x.window_start, x.k, x.n, y.m FROM (SELECT window_start, k, count(*) AS n FROM tumbled(30) GROUP BY ALL) AS x LEFT JOIN (SELECT window_start, k, max(v) AS m FROM tumbled_b(30) GROUP BY ALL) AS y ON x.k = y.k AND x.window_start = y.window_start

-- # interval join
SELECT x.k, x.ts, y.ts AS u, y.v FROM a AS x JOIN b AS y ON x.k = y.k AND y.ts BETWEEN x.ts - INTERVAL '5 seconds' AND x.ts + INTERVAL '3 seconds'

-- # interval left join
SELECT x.k, x.ts, y.ts AS u FROM b AS x LEFT JOIN a AS y ON x.k = y.k AND y.g > 8 AND y.ts BETWEEN x.ts - INTERVAL '5 seconds' AND x.ts + INTERVAL '3 seconds'

-- # interval anti join
SELECT k, ts FROM a AS x WHERE NOT EXISTS (SELECT 1 FROM b AS y WHERE x.k = y.k AND y.ts BETWEEN x.ts - INTERVAL '5 seconds' AND x.ts + INTERVAL '3 seconds')

-- # top of each key
SELECT k, v, g, n FROM (SELECT k, v, g, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC NULLS LAST, g, ts, d) AS n FROM a) WHERE n <= 3

-- # second of each key
SELECT k, g, n FROM (SELECT k, g, ROW_NUMBER() OVER (PARTITION BY k ORDER BY g) AS n FROM (SELECT k, g, count(*) AS c FROM a GROUP BY k, g)) WHERE n = 2

-- # top of what changes
SELECT k, g, c, n FROM (SELECT k, g, c, ROW_NUMBER() OVER (PARTITION BY k ORDER BY c DESC, g DESC) AS n FROM (SELECT k, g, count(*) AS c FROM a GROUP BY k, g)) WHERE n <= 3

-- # top of nothing
SELECT k, g FROM (SELECT k, g, ROW_NUMBER() OVER (PARTITION BY k ORDER BY g) AS n FROM a) WHERE n <= 0

-- # over rows
SELECT k, ts, v, sum(v) OVER (PARTITION BY k ORDER BY ts, v, g, d ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS s FROM b
-- oracle
SELECT k, ts, v, sum(v) OVER (PARTITION BY k ORDER BY ts, v NULLS LAST, g, d NULLS LAST ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS s FROM b

-- # over a range
SELECT k, ts, sum(g) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL '7 seconds' PRECEDING AND CURRENT ROW) AS s, max(g) OVER (PARTITION BY k ORDER BY ts) AS h FROM b

-- # over without time
SELECT k, v, sum(g) OVER (PARTITION BY k ORDER BY g DESC) AS s FROM b

-- # over windows, then by window
SELECT window_start, window_end, count(*) AS n, sum(s) AS s FROM (SELECT window_start, window_end, k, sum(n) OVER (PARTITION BY k ORDER BY window_end ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM (SELECT window_start, window_end, k, count(*) AS n FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end, k)) GROUP BY window_start, window_end
-- oracle
SELECT window_start, window_end, count(*) AS n, sum(s) AS s FROM (SELECT window_start, window_end, k, sum(n) OVER (PARTITION BY k ORDER BY window_end ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM (SELECT window_start, window_end, k, count(*) AS n FROM tumbled(10) GROUP BY ALL)) GROUP BY ALL
