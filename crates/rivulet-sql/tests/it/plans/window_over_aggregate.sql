SELECT window_start, max(bids) AS most
FROM (SELECT bidder, count(*) AS bids, max(date_time) AS latest FROM bid GROUP BY bidder) AS bidders
GROUP BY tumble(latest, INTERVAL '1 minute');
