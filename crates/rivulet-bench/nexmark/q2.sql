-- Selection: bids on some auctions.
INSERT INTO results
SELECT auction, price
FROM bid
WHERE auction % 123 = 0;
