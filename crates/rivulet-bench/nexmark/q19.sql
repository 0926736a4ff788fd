-- The ten highest bids of each auction, the earlier of equal ones first, so that there is one answer.
INSERT INTO results
SELECT auction, bidder, price, channel, url, date_time, extra, place
FROM (
  SELECT auction, bidder, price, channel, url, date_time, extra,
    ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, date_time) AS place
  FROM bid
) AS ranked
WHERE place <= 10;
