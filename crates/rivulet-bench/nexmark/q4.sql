-- Average of the winning prices of each category. The winner of an auction changes as bids come, and the average with it.
INSERT INTO results
SELECT category, avg(final) AS average
FROM (
  SELECT a.id, a.category, max(b.price) AS final
  FROM auction AS a
  JOIN bid AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
  GROUP BY a.id, a.category
) AS winners
GROUP BY category;
