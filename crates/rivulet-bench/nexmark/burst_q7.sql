-- Highest bid of the last {window} seconds, every second.
INSERT INTO results
SELECT b.auction, b.bidder, b.price, b.date_time, m.window_end
FROM bid AS b
JOIN (
  SELECT max(price) AS highest, window_start, window_end
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1' SECOND, INTERVAL '{window}' SECOND))
  GROUP BY window_start, window_end
) AS m ON b.price = m.highest
  AND b.date_time >= m.window_end - INTERVAL '{window}' SECOND AND b.date_time < m.window_end;
