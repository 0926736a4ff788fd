-- Hot items: the auctions with the most bids of the last {window} seconds, every second.
CREATE VIEW counts AS
SELECT auction, count(*) AS num, window_start, window_end
FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1' SECOND, INTERVAL '{window}' SECOND))
GROUP BY auction, window_start, window_end;

INSERT INTO results
SELECT auction, num, window_end
FROM (
  SELECT auction, num, window_end, rank() OVER (PARTITION BY window_start, window_end ORDER BY num DESC) AS place
  FROM counts
)
WHERE place = 1;
