SELECT auction, window_start, window_end, max(price) AS highest FROM bid
WHERE price > 100
GROUP BY auction, hop(date_time, INTERVAL '1 second', INTERVAL '1 minute')
HAVING max(price) > 1000 AND window_end > TIMESTAMP '2026-01-01 00:00:00'
INTO results;
