SELECT auction, price, (SELECT max(price) FROM bid) AS highest FROM bid
WHERE price > (SELECT avg(price) FROM bid);
