-- Compare with last week: tells a shop how its sales of a day compare with those of the same day of the week before.
--
-- A till publishes sales to shop/<shop>/sale:
--     {"ts": 1763712345678, "amount": 12.5}         ts: milliseconds since 1970
-- At the end of each day (UTC) that had sales, shop/<shop>/week receives the sum and how it has changed against the
-- day seven days before:
--     {"amount": 150.0, "last_week": 120.0, "percent": 25.0, "window_start": ...}
-- lag counts results, and a day without sales has none: the shop has to be open on all days.

CREATE APPLICATION last_week (shop TEXT)
INPUT sales (ts TIMESTAMP EVENT TIME, amount DOUBLE) FROM 'mqtt:shop/{shop}/sale' FORMAT JSON
  WITH (idle_timeout => INTERVAL '12 hours')
OUTPUT 'mqtt:shop/{shop}/week' FORMAT JSON
AS SELECT sum(amount) AS amount,
          lag(sum(amount), 7) AS last_week,
          round((sum(amount) / lag(sum(amount), 7) - 1.0) * 1000.0) / 10.0 AS percent,
          window_start
   FROM sales
   GROUP BY tumble(ts, INTERVAL '1 day')
   QUALIFY last_week IS NOT NULL;

-- One shop's use of it:
-- CREATE QUERY north_week FROM APPLICATION last_week WITH (shop => 'north');
