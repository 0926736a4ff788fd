-- Highest bid of the last {window} seconds, every second: the highest of those of each second.
CREATE VIEW highest AS
SELECT auction, bidder, price, date_time, window_time AS second
FROM (
  SELECT auction, bidder, price, date_time, window_time,
    rank() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) AS place
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1' SECOND))
)
WHERE place = 1;

INSERT INTO results
SELECT auction, bidder, price, date_time, window_end
FROM (
  SELECT auction, bidder, price, date_time, window_end,
    rank() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) AS place
  FROM TABLE(HOP(TABLE highest, DESCRIPTOR(second), INTERVAL '1' SECOND, INTERVAL '{window}' SECOND))
)
WHERE place = 1;
