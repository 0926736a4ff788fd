SELECT auction, price, avg(price) OVER (PARTITION BY auction ORDER BY date_time ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS recent,
    count(*) OVER (PARTITION BY auction ORDER BY date_time RANGE BETWEEN INTERVAL '1 minute' PRECEDING AND CURRENT ROW) AS in_a_minute
FROM bid;
