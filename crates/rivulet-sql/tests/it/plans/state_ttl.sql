SELECT a.category, count(*) AS bids, count(DISTINCT b.bidder) AS bidders
FROM auction AS a LEFT JOIN bid AS b ON b.auction = a.id
GROUP BY a.category
WITH (state_ttl => INTERVAL '90 minutes');
