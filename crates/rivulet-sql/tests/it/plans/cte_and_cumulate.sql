WITH prices AS (SELECT date_time, price, channel FROM bid WHERE price > 0)
SELECT channel, window_start, window_end, sum(price) AS revenue
FROM TABLE(CUMULATE(TABLE prices, DESCRIPTOR(date_time), INTERVAL '1' MINUTE, INTERVAL '1' HOUR))
GROUP BY channel, window_start, window_end;
