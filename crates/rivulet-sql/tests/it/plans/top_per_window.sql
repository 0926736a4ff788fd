SELECT auction, num, window_end FROM (
    SELECT auction, num, window_end, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY num DESC) AS n
    FROM (SELECT auction, count(*) AS num, window_start, window_end FROM bid
          GROUP BY auction, tumble(date_time, INTERVAL '10 seconds'))
) WHERE n < 4;
