-- Bids with their bidder and what the bidder sells. Two joins without a bound in time.
INSERT INTO results
SELECT b.auction, b.bidder, b.price, b.date_time, p.name, p.city, p.state, a.id, a.item_name, a.category
FROM bid AS b
JOIN person AS p ON p.id = b.bidder
JOIN auction AS a ON a.seller = b.bidder;
