SELECT channel, DATE_FORMAT(date_time, 'yyyy-MM-dd') AS day, max(DATE_FORMAT(date_time, 'HH:mm')) AS minute,
    count(*) AS total_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders
FROM bid
GROUP BY channel, DATE_FORMAT(date_time, 'yyyy-MM-dd');
