-- Calculation: expressions, and the times of day.
INSERT INTO results
SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price,
  CASE
    WHEN date_part('hour', date_time) >= 8 AND date_part('hour', date_time) <= 18 THEN 'dayTime'
    WHEN date_part('hour', date_time) <= 6 OR date_part('hour', date_time) >= 20 THEN 'nightTime'
    ELSE 'otherTime'
  END AS bid_time_type,
  date_time, extra, character_length(extra) - character_length(replace(extra, 'c', '')) AS c_counts
FROM bid
WHERE CAST(0.908 AS DOUBLE) * price > 1000000 AND CAST(0.908 AS DOUBLE) * price < 50000000;
