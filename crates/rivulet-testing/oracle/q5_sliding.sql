-- Each bid in each window of a minute, every second, that it falls into.
WITH counts AS (
  SELECT auction, count(*) AS num, start
  FROM (SELECT auction, unnest(generate_series(window_of(date_time, 1000000) - 59000000, window_of(date_time, 1000000), 1000000)) AS start FROM bid)
  GROUP BY auction, start
)
SELECT auction, num, make_timestamp(start) AS window_start, make_timestamp(start + 60000000) AS window_end
FROM counts
WHERE num = (SELECT max(num) FROM counts AS others WHERE others.start = counts.start)
