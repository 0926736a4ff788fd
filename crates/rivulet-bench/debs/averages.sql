-- The mean power of the last 60 seconds, each second. Windows reach beyond both ends of the data.
CREATE SOURCE sample (ts TIMESTAMP EVENT TIME, mf01 BIGINT, mf02 BIGINT, mf03 BIGINT)
FROM 'file:{folder}/sample.csv' FORMAT CSV;
CREATE SINK averages TO 'file:{folder}/averages.csv' FORMAT CSV;

INSERT INTO averages
SELECT CAST(window_start AS BIGINT) / 1000000 AS start_s, CAST(window_end AS BIGINT) / 1000000 AS end_s, count(*) AS n,
       sum(mf01) AS sum_mf01, sum(mf02) AS sum_mf02, sum(mf03) AS sum_mf03,
       avg(mf01) AS avg_mf01, avg(mf02) AS avg_mf02, avg(mf03) AS avg_mf03
FROM TABLE(HOP(TABLE sample, DESCRIPTOR(ts), INTERVAL '1 second', INTERVAL '60 seconds'))
GROUP BY window_start, window_end;
