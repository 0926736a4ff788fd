-- Currency conversion: a simple expression, without a window. The letters in extra, which only fill a bid up, stay out.
INSERT INTO results
SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price, date_time
FROM bid;
