-- Side input: bids with what a bounded table says.
CREATE TABLE side_input (key BIGINT NOT NULL, value BIGINT NOT NULL) FROM 'file:{side_input}' FORMAT CSV (header => true);

INSERT INTO results
SELECT b.auction, b.bidder, b.price, b.date_time, s.value
FROM bid AS b
JOIN side_input AS s ON b.auction % 10000 = s.key;
