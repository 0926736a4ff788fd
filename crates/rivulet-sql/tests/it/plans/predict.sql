SELECT predict('air.json', price, bidder) AS air, count(*) AS n FROM bid
WHERE predict('air.json', 1.5, auction) = 'GOOD' GROUP BY predict('air.json', price, bidder);
