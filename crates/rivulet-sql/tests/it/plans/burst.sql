SELECT channel, count(*) AS n, window_end FROM bid
GROUP BY channel, tumble(date_time, INTERVAL '1 minute') WITH (burst => true);
