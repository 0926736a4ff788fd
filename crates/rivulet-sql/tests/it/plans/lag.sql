SELECT auction, price, price - LAG(price) OVER (PARTITION BY auction ORDER BY date_time) AS step,
    LAG(upper(channel), 3) OVER (PARTITION BY auction ORDER BY date_time) AS channel,
    avg(price) OVER (PARTITION BY auction ORDER BY date_time ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS recent
FROM bid;
