-- RIoTBench's ETL with the settings of EdgeWise: range filter, membership, interpolation, annotation; each row goes out as
-- CSV, as a table would be given it, and as SenML, as it would be published.
CREATE TABLE sensors (source TEXT NOT NULL, location TEXT, type TEXT) FROM 'file:{folder}/sensors.csv' FORMAT CSV;
CREATE SOURCE city FROM 'riot:' WITH ({options});

-- A value outside of its range is none.
CREATE VIEW ranged AS
SELECT at, sent, source, longitude, latitude,
       CASE WHEN temperature BETWEEN 0.7 AND 35.1 THEN temperature END AS temperature,
       CASE WHEN humidity BETWEEN 20.3 AND 69.1 THEN humidity END AS humidity,
       CASE WHEN light BETWEEN 0 AND 5153 THEN light END AS light,
       CASE WHEN dust BETWEEN 83.36 AND 3322.67 THEN dust END AS dust,
       CASE WHEN airquality_raw BETWEEN 12 AND 49 THEN airquality_raw END AS airquality_raw
FROM city;

-- In its place stands the mean of the sensor's last five values.
CREATE VIEW filled AS
SELECT sent, source, longitude, latitude,
       CAST(coalesce(temperature, avg_last(temperature, 5) OVER so_far, 0) AS REAL) AS temperature,
       CAST(coalesce(humidity, avg_last(humidity, 5) OVER so_far, 0) AS REAL) AS humidity,
       CAST(coalesce(light, avg_last(light, 5) OVER so_far, 0) AS REAL) AS light,
       CAST(coalesce(dust, avg_last(dust, 5) OVER so_far, 0) AS REAL) AS dust,
       CAST(coalesce(airquality_raw, avg_last(airquality_raw, 5) OVER so_far, 0) AS REAL) AS airquality_raw
FROM ranged
WINDOW so_far AS (PARTITION BY source ORDER BY at ROWS UNBOUNDED PRECEDING);

-- A sensor that is not in the table has no row: membership and annotation are one lookup.
CREATE VIEW annotated AS
SELECT CAST(sent AS BIGINT) / 1000 AS sent_ms, f.source, longitude, latitude, temperature, humidity, light, dust,
       airquality_raw, location, type
FROM filled AS f JOIN sensors AS s ON s.source = f.source;

INSERT INTO results
SELECT concat_ws(',', sent_ms, source, longitude, latitude, temperature, humidity, light, dust, airquality_raw,
                 location, type) AS text
FROM annotated
UNION ALL
SELECT concat('{"bt":', sent_ms, ',"e":[{"n":"source","u":"string","sv":"', source,
              '"},{"n":"longitude","u":"lon","v":"', longitude,
              '"},{"n":"latitude","u":"lat","v":"', latitude,
              '"},{"n":"temperature","u":"far","v":"', temperature,
              '"},{"n":"humidity","u":"per","v":"', humidity,
              '"},{"n":"light","u":"per","v":"', light,
              '"},{"n":"dust","u":"per","v":"', dust,
              '"},{"n":"airquality_raw","u":"per","v":"', airquality_raw,
              '"},{"n":"location","u":"string","sv":"', location,
              '"},{"n":"type","u":"string","sv":"', type, '"}]}')
FROM annotated{with};
