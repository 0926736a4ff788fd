-- New users that sell within {window} seconds, every second.
INSERT INTO results
SELECT p.id, p.name, a.reserve, p.window_end
FROM (
  SELECT id, name, window_start, window_end
  FROM TABLE(HOP(TABLE person, DESCRIPTOR(date_time), INTERVAL '1' SECOND, INTERVAL '{window}' SECOND))
  GROUP BY id, name, window_start, window_end
) AS p
JOIN (
  SELECT seller, max(reserve) AS reserve, window_start, window_end
  FROM TABLE(HOP(TABLE auction, DESCRIPTOR(date_time), INTERVAL '1' SECOND, INTERVAL '{window}' SECOND))
  GROUP BY seller, window_start, window_end
) AS a ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end;
