-- The first query of the DEBS 2012 challenge, over the source readings: how long valves take to answer their sensors.

-- The bits of a reading as one number, so that one comparison finds every change.
CREATE VIEW states AS
SELECT ts, CAST(bm05 AS BIGINT) + 2 * CAST(bm06 AS BIGINT) + 4 * CAST(bm07 AS BIGINT)
           + 8 * CAST(bm08 AS BIGINT) + 16 * CAST(bm09 AS BIGINT) + 32 * CAST(bm10 AS BIGINT) AS state
FROM readings;

CREATE VIEW changes AS
SELECT ts, state, previous
FROM (SELECT ts, state, LAG(state) OVER (ORDER BY ts) AS previous FROM states)
WHERE state <> previous;

-- Six detectors, each of one bit. The change of a sensor has its time in sensor_ts too.
CREATE TABLE detectors (mask BIGINT NOT NULL, pair TEXT NOT NULL, is_valve BOOLEAN NOT NULL) FROM 'data:,1,A,false
2,B,false
4,C,false
8,A,true
16,B,true
32,C,true' FORMAT CSV;

CREATE VIEW edges AS
SELECT d.pair, c.ts, (c.state & d.mask) > 0 AS is_on, CASE WHEN NOT d.is_valve THEN c.ts END AS sensor_ts
FROM changes AS c JOIN detectors AS d ON (c.state & d.mask) <> (c.previous & d.mask);

-- A valve answers the newest change of its sensor, if that is in the same direction and has no answer yet.
CREATE VIEW answers AS
SELECT pair, ts, CAST(pending AS BIGINT) / 1000 AS t, (CAST(ts AS BIGINT) - CAST(pending AS BIGINT)) / 1000 AS dt
FROM (SELECT pair, ts, sensor_ts, LAG(sensor_ts) OVER (PARTITION BY pair, is_on ORDER BY ts) AS pending,
             last_value(sensor_ts) OVER (PARTITION BY pair ORDER BY ts ROWS UNBOUNDED PRECEDING) AS newest
      FROM edges)
WHERE sensor_ts IS NULL AND pending = newest;

-- An alarm if the answer took over 1 % longer than the fastest one of a day; and the line through all of them.
CREATE VIEW monitored AS
SELECT pair, t, dt, 100 * dt > 101 * min(dt) OVER last_day AS alarm, regr_slope(dt, t) OVER last_day AS slope,
       regr_intercept(dt, t) OVER last_day AS intercept, count(*) OVER last_day AS n
FROM answers
WINDOW last_day AS (PARTITION BY pair ORDER BY ts RANGE BETWEEN INTERVAL '24 hours' PRECEDING AND CURRENT ROW);
