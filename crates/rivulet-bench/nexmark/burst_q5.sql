-- Hot items: the auctions with the most bids of the last {window} seconds, every second.
CREATE VIEW counts AS
SELECT auction, count(*) AS num, window_start, window_end
FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1' SECOND, INTERVAL '{window}' SECOND))
GROUP BY auction, window_start, window_end;

INSERT INTO results
SELECT c.auction, c.num, c.window_end
FROM counts AS c
JOIN (
  SELECT max(num) AS most, window_start, window_end
  FROM counts
  GROUP BY window_start, window_end
) AS m ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num = m.most;
