-- Each record as it came.
INSERT INTO results
SELECT ts, record
FROM visits;
