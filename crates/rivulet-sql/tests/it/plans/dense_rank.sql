SELECT auction, bidder, price, place
FROM (SELECT auction, bidder, price, DENSE_RANK() OVER (PARTITION BY auction ORDER BY price DESC) AS place FROM bid)
WHERE place <= 3;
