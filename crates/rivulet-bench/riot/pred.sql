-- RIoTBench's PRED with the settings of EdgeWise: a class by a decision tree, a value by a linear model, and the error of
-- that relative to the last mean of five values of any sensor.
CREATE SOURCE city FROM 'riot:' WITH ({options});

CREATE VIEW predicted AS
SELECT at, number, source, airquality_raw,
       concat_ws(',', number, CAST(sent AS BIGINT) / 1000, source, longitude, latitude) AS meta,
       concat_ws(',', temperature, humidity, light, dust, airquality_raw) AS observed,
       CASE WHEN airquality_raw <= 22 THEN 'BAD' WHEN airquality_raw <= 29 THEN 'GOOD' ELSE 'VERYGOOD' END AS class,
       37.442739000196276 - 0.5106896760749683 * temperature + 0.1550345386077423 * humidity
         - 0.0043941074441107295 * dust AS value
FROM city;

CREATE VIEW averaged AS
SELECT *, count(*) OVER (PARTITION BY source ORDER BY at ROWS UNBOUNDED PRECEDING) AS n,
       avg(airquality_raw) OVER (PARTITION BY source ORDER BY at ROWS 4 PRECEDING) AS mean
FROM predicted;

-- The newest mean, with its number before it so that the newest is the greatest.
CREATE VIEW last_averaged AS
SELECT meta, observed, value, airquality_raw,
       max(CASE WHEN n % 5 = 0 THEN lpad(CAST(number AS TEXT), 18, '0') || '|' || CAST(mean AS TEXT) END)
         OVER (ORDER BY at ROWS UNBOUNDED PRECEDING) AS last
FROM averaged;

CREATE VIEW errors AS
SELECT meta, observed, value,
       (airquality_raw - value) / CASE WHEN last IS NULL THEN 0.0 ELSE CAST(split_part(last, '|', 2) AS DOUBLE) END AS error
FROM last_averaged;

INSERT INTO results
SELECT concat(meta, ',DTC,obsVal:', observed, ',RES:', class) AS text FROM predicted
UNION ALL
SELECT concat(meta, ',MLR,obsVal:', observed, ',RES:', value, ',ERROR:', error) FROM errors{with};
