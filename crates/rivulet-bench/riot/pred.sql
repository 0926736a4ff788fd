-- RIoTBench's PRED with the settings of EdgeWise: a class by a decision tree, a value by a linear model, and the error of
-- that relative to the last mean of five values of any sensor.
CREATE SOURCE city FROM 'riot:' WITH ({options});

CREATE VIEW predicted AS
SELECT at, number, source, airquality_raw,
       concat_ws(',', number, CAST(sent AS BIGINT) / 1000, source, longitude, latitude) AS meta,
       concat_ws(',', temperature, humidity, light, dust, airquality_raw) AS observed,
       predict('{folder}/air_class.json', temperature, humidity, light, dust, airquality_raw) AS class,
       predict('{folder}/air_quality.json', temperature, humidity, dust) AS value
FROM city;

CREATE VIEW averaged AS
SELECT *, count(*) OVER (PARTITION BY source ORDER BY at ROWS UNBOUNDED PRECEDING) AS n,
       avg(airquality_raw) OVER (PARTITION BY source ORDER BY at ROWS 4 PRECEDING) AS mean
FROM predicted;

CREATE VIEW errors AS
SELECT meta, observed, value,
       (airquality_raw - value)
         / coalesce(last_value(CASE WHEN n % 5 = 0 THEN mean END) OVER (ORDER BY at ROWS UNBOUNDED PRECEDING), 0.0) AS error
FROM averaged;

INSERT INTO results
SELECT concat(meta, ',DTC,obsVal:', observed, ',RES:', class) AS text FROM predicted
UNION ALL
SELECT concat(meta, ',MLR,obsVal:', observed, ',RES:', value, ',ERROR:', error) FROM errors{with};
