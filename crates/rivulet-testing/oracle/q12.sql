-- Windows by the clock differ from run to run; over all of them, each bidder has so many bids.
SELECT bidder, count(*) AS bid_count
FROM bid
GROUP BY bidder
