-- A bid begins a session if the one before it is 10 seconds or more away; sessions are numbered by their beginnings.
SELECT bidder, count(*) AS bid_count, min(date_time) AS start_time, max(date_time) + INTERVAL '10' SECOND AS end_time
FROM (
  SELECT bidder, date_time, sum(begins) OVER (PARTITION BY bidder ORDER BY date_time ROWS UNBOUNDED PRECEDING) AS session
  FROM (
    SELECT bidder, date_time,
      CASE WHEN date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time) < INTERVAL '10' SECOND THEN 0 ELSE 1 END AS begins
    FROM bid
  )
)
GROUP BY bidder, session
