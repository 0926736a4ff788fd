SELECT auction, count(*) AS bids FROM bid GROUP BY auction
HAVING count(*) > (SELECT count(*) FROM bid) / 100;
