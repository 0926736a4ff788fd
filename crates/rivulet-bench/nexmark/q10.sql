-- Log to files: bids with the day and the minute by which files are divided.
INSERT INTO results
SELECT auction, bidder, price, date_time, extra, to_char(date_time, '%Y-%m-%d') AS dt, to_char(date_time, '%H:%M') AS hm
FROM bid;
