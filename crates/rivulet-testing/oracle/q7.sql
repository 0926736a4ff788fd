SELECT auction, bidder, price, date_time, extra
FROM (SELECT *, max(price) OVER (PARTITION BY window_of(date_time, 10000000)) AS highest FROM bid)
WHERE price = highest
