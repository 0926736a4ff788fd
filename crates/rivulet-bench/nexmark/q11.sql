-- Sessions of users: bids without a pause of 10 seconds.
INSERT INTO results
SELECT bidder, count(*) AS bid_count, window_start AS start_time, window_end AS end_time
FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end;
