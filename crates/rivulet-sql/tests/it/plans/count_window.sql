SELECT bidder, window_start, window_end, count(*) AS bids, avg(price) AS mean
FROM bid GROUP BY bidder, count_window(100, 10) HAVING avg(price) > 10 WITH (state_ttl => INTERVAL '1 day');
