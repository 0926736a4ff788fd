-- RIoTBench's STATS as EdgeWise ran it, over real values: for each sensor and quantity a Kalman filter and a line through
-- its last ten values, and the second moment; for each quantity the number of different sensors.
CREATE SOURCE city FROM 'riot:' WITH ({options});

CREATE VIEW lines AS
SELECT at, source, concat_ws(',', number, CAST(sent AS BIGINT) / 1000, source, longitude, latitude) AS meta,
       temperature, humidity, light, dust, airquality_raw
FROM city;

CREATE VIEW observed AS
SELECT at, source, meta, 'temp' AS type, temperature AS value FROM lines
UNION ALL SELECT at, source, meta, 'humid', humidity FROM lines
UNION ALL SELECT at, source, meta, 'light', light FROM lines
UNION ALL SELECT at, source, meta, 'dust', dust FROM lines
UNION ALL SELECT at, source, meta, 'airq', airquality_raw FROM lines;

CREATE VIEW smooth AS
SELECT at, source, type, meta, kalman(value, 0.125, 0.32) OVER so_far AS value, count(*) OVER so_far AS n
FROM observed
WINDOW so_far AS (PARTITION BY source, type ORDER BY at ROWS UNBOUNDED PRECEDING);

CREATE VIEW forecast AS
SELECT meta, type, n, regr_slope(value, n) OVER last AS slope, regr_intercept(value, n) OVER last AS base
FROM smooth
WINDOW last AS (PARTITION BY source, type ORDER BY at ROWS 9 PRECEDING);

-- The second moment grows by 2c - 1 with a value that has come for the time c.
CREATE VIEW counted AS
SELECT at, source, type, meta,
       count(*) OVER (PARTITION BY source, type, value ORDER BY at ROWS UNBOUNDED PRECEDING) AS c
FROM observed;

CREATE VIEW moments AS
SELECT meta, type, sum(2 * c - 1) OVER (PARTITION BY source, type ORDER BY at ROWS UNBOUNDED PRECEDING) AS moment
FROM counted;

CREATE VIEW sensors AS
SELECT meta, type, approx_distinct(source) OVER (PARTITION BY type ORDER BY at ROWS UNBOUNDED PRECEDING) AS sensors
FROM observed;

INSERT INTO results
SELECT concat(meta, ';', type, '-SLR-',
              base + slope * (n + 1), '#', base + slope * (n + 2), '#', base + slope * (n + 3), '#',
              base + slope * (n + 4), '#', base + slope * (n + 5), '#', base + slope * (n + 6), '#',
              base + slope * (n + 7), '#', base + slope * (n + 8), '#', base + slope * (n + 9), '#',
              base + slope * (n + 10), '#') AS text
FROM forecast WHERE n > 10
UNION ALL SELECT concat(meta, ';', type, '-SOM-', moment) FROM moments
UNION ALL SELECT concat(meta, ';', type, '-DAC-', sensors) FROM sensors{with};
