-- Each bid in each window of 10 seconds, every 2 seconds, that it falls into.
WITH counts AS (
  SELECT auction, count(*) AS num, start
  FROM (SELECT auction, unnest(generate_series(window_of(date_time, 2000000) - 8000000, window_of(date_time, 2000000), 2000000)) AS start FROM bid)
  GROUP BY auction, start
)
SELECT auction, num, make_timestamp(start) AS window_start, make_timestamp(start + 10000000) AS window_end
FROM counts
WHERE num = (SELECT max(num) FROM counts AS others WHERE others.start = counts.start)
