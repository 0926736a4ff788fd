-- How often each address came so far. Keys are kept for ever.
INSERT INTO results
SELECT ip, count(*) AS visits
FROM visits
GROUP BY ip;
