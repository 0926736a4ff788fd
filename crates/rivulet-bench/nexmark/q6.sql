-- Average of the last winning prices of each seller. Winners change as bids come, and averages with them.
INSERT INTO results
SELECT seller, avg(price) OVER (PARTITION BY seller ORDER BY date_time, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS average
FROM (
  SELECT id, seller, price, date_time
  FROM (
    SELECT a.id, a.seller, b.price, b.date_time,
      ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time) AS place
    FROM auction AS a
    JOIN bid AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
  ) AS ranked
  WHERE place <= 1
) AS winners;
