-- Windows by the clock: bids of each user in 10 seconds of processing.
INSERT INTO results
SELECT bidder, count(*) AS bid_count, window_start AS start_time, window_end AS end_time
FROM bid
GROUP BY bidder, tumble(PROCTIME(), INTERVAL '10' SECOND);
