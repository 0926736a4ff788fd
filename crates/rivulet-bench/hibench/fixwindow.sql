-- Visits of each address in windows that follow each other, with the first and last of them.
INSERT INTO results
SELECT ip, min(ts) AS first_ts, max(ts) AS last_ts, count(*) AS visits, window_end
FROM TABLE(TUMBLE(TABLE visits, DESCRIPTOR(ts), INTERVAL '{window_s}' SECOND))
GROUP BY ip, window_start, window_end;
