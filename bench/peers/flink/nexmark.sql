The queries of NEXMark as Flink runs them. A section begins with two dashes and its name. What is not here is not in Flink: q6 needs an
OVER window on rows that change. q13 has its side input as a changing table would be joined, for want of a connector with lookups.

-- tables
CREATE TABLE person (id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, date_time_ms BIGINT,
  extra STRING, date_time AS TO_TIMESTAMP_LTZ(date_time_ms, 3), WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND)
WITH ('connector' = 'filesystem', 'path' = '{folder}/person.csv', 'format' = 'csv');
CREATE TABLE auction (id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, date_time_ms BIGINT,
  expires_ms BIGINT, seller BIGINT, category BIGINT, extra STRING, date_time AS TO_TIMESTAMP_LTZ(date_time_ms, 3),
  expires AS TO_TIMESTAMP_LTZ(expires_ms, 3), WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND)
WITH ('connector' = 'filesystem', 'path' = '{folder}/auction.csv', 'format' = 'csv');
CREATE TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time_ms BIGINT, extra STRING,
  date_time AS TO_TIMESTAMP_LTZ(date_time_ms, 3), clock AS PROCTIME(), WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND)
WITH ('connector' = 'filesystem', 'path' = '{folder}/bid.csv', 'format' = 'csv');
CREATE TABLE side_input (key BIGINT, `value` BIGINT)
WITH ('connector' = 'filesystem', 'path' = '{folder}/side_input.csv', 'format' = 'csv');

-- q0
SELECT auction, bidder, price, date_time, extra FROM bid

-- q1
SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price, date_time, extra FROM bid

-- q2
SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0

-- q3
SELECT p.name, p.city, p.state, a.id
FROM auction AS a JOIN person AS p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')

-- q4
SELECT category, AVG(final) AS average
FROM (
  SELECT a.id, a.category, MAX(b.price) AS final
  FROM auction AS a JOIN bid AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
  GROUP BY a.id, a.category
)
GROUP BY category

-- q5
SELECT c.auction, c.num, c.window_start, c.window_end
FROM (
  SELECT auction, COUNT(*) AS num, window_start, window_end
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
  GROUP BY auction, window_start, window_end
) AS c
JOIN (
  SELECT MAX(num) AS most, window_start, window_end
  FROM (
    SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
  )
  GROUP BY window_start, window_end
) AS m ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num = m.most

-- q5_sliding
SELECT c.auction, c.num, c.window_start, c.window_end
FROM (
  SELECT auction, COUNT(*) AS num, window_start, window_end
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1' SECOND, INTERVAL '60' SECOND))
  GROUP BY auction, window_start, window_end
) AS c
JOIN (
  SELECT MAX(num) AS most, window_start, window_end
  FROM (
    SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1' SECOND, INTERVAL '60' SECOND))
    GROUP BY auction, window_start, window_end
  )
  GROUP BY window_start, window_end
) AS m ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.num = m.most

-- q7
SELECT b.auction, b.bidder, b.price, b.date_time, b.extra
FROM bid AS b
JOIN (
  SELECT MAX(price) AS highest, window_end
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end
) AS m ON b.price = m.highest AND b.date_time >= m.window_end - INTERVAL '10' SECOND AND b.date_time < m.window_end

-- q8
SELECT p.id, p.name, p.window_start
FROM (
  SELECT id, name, window_start, window_end
  FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
  GROUP BY id, name, window_start, window_end
) AS p
JOIN (
  SELECT seller, window_start, window_end
  FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
  GROUP BY seller, window_start, window_end
) AS a ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end

-- q9
SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, extra,
  auction, bidder, price, bid_date_time, bid_extra
FROM (
  SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, a.category, a.extra,
    b.auction, b.bidder, b.price, b.date_time AS bid_date_time, b.extra AS bid_extra,
    ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time ASC) AS place
  FROM auction AS a JOIN bid AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
)
WHERE place <= 1

-- q10
SELECT auction, bidder, price, date_time, extra, DATE_FORMAT(date_time, 'yyyy-MM-dd') AS dt, DATE_FORMAT(date_time, 'HH:mm') AS hm FROM bid

-- q11
SELECT bidder, COUNT(*) AS bid_count, window_start AS start_time, window_end AS end_time
FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end

-- q12
SELECT bidder, COUNT(*) AS bid_count, window_start AS start_time, window_end AS end_time
FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(clock), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end

-- q13
SELECT b.auction, b.bidder, b.price, b.date_time, s.`value`
FROM bid AS b JOIN side_input AS s ON MOD(b.auction, 10000) = s.key

-- q14
SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price,
  CASE
    WHEN EXTRACT(HOUR FROM date_time) >= 8 AND EXTRACT(HOUR FROM date_time) <= 18 THEN 'dayTime'
    WHEN EXTRACT(HOUR FROM date_time) <= 6 OR EXTRACT(HOUR FROM date_time) >= 20 THEN 'nightTime'
    ELSE 'otherTime'
  END AS bid_time_type,
  date_time, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS c_counts
FROM bid
WHERE CAST(0.908 AS DOUBLE) * price > 1000000 AND CAST(0.908 AS DOUBLE) * price < 50000000

-- q15
SELECT DATE_FORMAT(date_time, 'yyyy-MM-dd') AS `day`,
  COUNT(*) AS total_bids,
  COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
  COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
  COUNT(DISTINCT bidder) AS total_bidders,
  COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
  COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
  COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
  COUNT(DISTINCT auction) AS total_auctions,
  COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
  COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
  COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
FROM bid
GROUP BY DATE_FORMAT(date_time, 'yyyy-MM-dd')

-- q16
SELECT channel, DATE_FORMAT(date_time, 'yyyy-MM-dd') AS `day`, MAX(DATE_FORMAT(date_time, 'HH:mm')) AS `minute`,
  COUNT(*) AS total_bids,
  COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
  COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
  COUNT(DISTINCT bidder) AS total_bidders,
  COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
  COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
  COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
  COUNT(DISTINCT auction) AS total_auctions,
  COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
  COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
  COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
FROM bid
GROUP BY channel, DATE_FORMAT(date_time, 'yyyy-MM-dd')

-- q17
SELECT auction, DATE_FORMAT(date_time, 'yyyy-MM-dd') AS `day`,
  COUNT(*) AS total_bids,
  COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
  COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
  COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
  MIN(price) AS min_price, MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price
FROM bid
GROUP BY auction, DATE_FORMAT(date_time, 'yyyy-MM-dd')

-- q18
SELECT auction, bidder, price, channel, url, date_time, extra
FROM (
  SELECT auction, bidder, price, channel, url, date_time, extra,
    ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS place
  FROM bid
)
WHERE place <= 1

-- q19
SELECT auction, bidder, price, channel, url, date_time, extra, place
FROM (
  SELECT auction, bidder, price, channel, url, date_time, extra,
    ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, date_time ASC) AS place
  FROM bid
)
WHERE place <= 10

-- q20
SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_date_time, b.extra AS bid_extra,
  a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS auction_date_time, a.expires, a.seller, a.category,
  a.extra AS auction_extra
FROM bid AS b JOIN auction AS a ON b.auction = a.id
WHERE a.category = 10

-- q21
SELECT auction, bidder, price, channel,
  CASE
    WHEN LOWER(channel) = 'apple' THEN '0'
    WHEN LOWER(channel) = 'google' THEN '1'
    WHEN LOWER(channel) = 'facebook' THEN '2'
    WHEN LOWER(channel) = 'baidu' THEN '3'
    ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)
  END AS channel_id
FROM bid
WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu')

-- q22
SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3
FROM bid

-- q23
SELECT b.auction, b.bidder, b.price, b.date_time, p.name, p.city, p.state, a.id, a.item_name, a.category
FROM bid AS b JOIN person AS p ON p.id = b.bidder JOIN auction AS a ON a.seller = b.bidder
