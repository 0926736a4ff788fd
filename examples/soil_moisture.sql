-- Soil moisture monitoring: tells a farmer when a field is too dry or too wet.
--
-- A probe in each field publishes the share of water in the soil to field/<field>/soil_moisture:
--     {"ts": 1763712345678.5, "value": 0.1834}      ts: milliseconds since 1970; value: m3 of water in a m3 of soil
-- Every ten seconds the average of the last minute is compared with the range that the crop wants. Outside of it,
-- field/<field>/alarm receives
--     {"moisture": 0.0712, "state": "dry", "window_end": ...}

CREATE APPLICATION soil_moisture (field TEXT, lowest DOUBLE DEFAULT 0.12, highest DOUBLE DEFAULT 0.32)
INPUT soil (ts TIMESTAMP EVENT TIME, value DOUBLE)
  FROM 'mqtt:field/{field}/soil_moisture' FORMAT JSON
OUTPUT 'mqtt:field/{field}/alarm' FORMAT JSON
AS SELECT avg(value) AS moisture,
          CASE WHEN avg(value) < $lowest THEN 'dry' ELSE 'wet' END AS state,
          window_end
   FROM soil
   GROUP BY hop(ts, INTERVAL '10 seconds', INTERVAL '60 seconds')
   HAVING avg(value) < $lowest OR avg(value) > $highest;

-- One field's use of it:
-- CREATE QUERY north_field FROM APPLICATION soil_moisture WITH (field => 'north', lowest => 0.15, highest => 0.35);
