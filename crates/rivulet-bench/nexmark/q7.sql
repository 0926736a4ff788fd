-- Highest bid of every 10 seconds.
INSERT INTO results
SELECT b.auction, b.bidder, b.price, b.date_time, b.extra
FROM bid AS b
JOIN (
  SELECT max(price) AS highest, window_start, window_end
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end
) AS m ON b.price = m.highest AND b.date_time >= m.window_end - INTERVAL '10' SECOND AND b.date_time < m.window_end;
