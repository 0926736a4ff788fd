-- Pass through: what an event costs without any work.
INSERT INTO results
SELECT auction, bidder, price, date_time, extra
FROM bid;
