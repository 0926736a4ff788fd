-- Average of the last ten winning prices of each seller. An auction is over, and its winner final, a second after its
-- last bid.
CREATE VIEW winners AS
SELECT a.id, a.seller, max(b.price) AS final, window_time AS won_at
FROM auction AS a
JOIN bid AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires AND b.price >= a.reserve
GROUP BY a.id, a.seller, session(b.date_time, INTERVAL '1 second');

INSERT INTO results
SELECT seller, id,
  avg(final) OVER (PARTITION BY seller ORDER BY won_at ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS average
FROM winners;
