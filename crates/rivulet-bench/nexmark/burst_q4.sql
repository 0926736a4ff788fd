-- Average of the winning prices of each category, of the last {window} seconds, every second. An auction is over, and
-- its winner final, a second after its last bid.
CREATE VIEW winners AS
SELECT a.id, a.category, max(b.price) AS final, window_time AS won_at
FROM auction AS a
JOIN bid AS b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires AND b.price >= a.reserve
GROUP BY a.id, a.category, session(b.date_time, INTERVAL '1 second');

INSERT INTO results
SELECT category, avg(final) AS average, window_end
FROM TABLE(HOP(TABLE winners, DESCRIPTOR(won_at), INTERVAL '1' SECOND, INTERVAL '{window}' SECOND))
GROUP BY category, window_start, window_end;
