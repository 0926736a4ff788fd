-- The busiest minute of each hour: a window over the results of a window.
--
-- A till publishes sales to shop/<shop>/sale:
--     {"ts": 1763712345678, "amount": 12.5}          ts: milliseconds since 1970
-- shop/<shop>/busiest receives a line for each hour in which something was sold:
--     {"busiest":4,"mean_of_minutes":21.25,"window_start":1763712000000}
--
-- The first window counts the sales of each minute, and the second one goes over its results. Their event time is the
-- end of the minute. The hour closes with its last minute.

CREATE APPLICATION busiest_minute (shop TEXT)
INPUT sales (ts TIMESTAMP EVENT TIME, amount DOUBLE) FROM 'mqtt:shop/{shop}/sale' FORMAT JSON
  WITH (idle_timeout => INTERVAL '10 minutes')
OUTPUT 'mqtt:shop/{shop}/busiest' FORMAT JSON
AS WITH minutes AS (
     SELECT count(*) AS sales, sum(amount) AS amount, window_end
     FROM sales
     GROUP BY tumble(ts, INTERVAL '1 minute'))
   SELECT max(sales) AS busiest, round(avg(amount) * 100.0) / 100.0 AS mean_of_minutes, window_start
   FROM minutes
   GROUP BY tumble(window_end, INTERVAL '1 hour');

-- One shop's use of it:
-- CREATE QUERY corner FROM APPLICATION busiest_minute WITH (shop => 'corner');
