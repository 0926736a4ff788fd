SELECT window_end, count(*) AS auctions, sum(price) AS volume
FROM (SELECT auction, price, date_time, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY date_time) AS n FROM bid)
WHERE n = 1
GROUP BY hop(date_time, INTERVAL '10 seconds', INTERVAL '1 minute');
