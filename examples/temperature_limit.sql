-- Temperature limit: passes on what is too hot, and keeps nothing.
--
-- All sensors of a plant publish to plant/<plant>/temperature, thousands of readings a second:
--     {"ts": 1763712345678.5, "value": 21.43}       ts: milliseconds since 1970
-- Readings above the limit go to plant/<plant>/too_hot.
--
-- It keeps nothing between rows, so a query that is too much for one worker runs on several.

CREATE APPLICATION temperature_limit (plant TEXT, highest DOUBLE DEFAULT 30.0)
INPUT temperature (ts TIMESTAMP EVENT TIME, value DOUBLE)
  FROM 'mqtt:plant/{plant}/temperature' FORMAT JSON
OUTPUT 'mqtt:plant/{plant}/too_hot' FORMAT JSON
AS SELECT ts, value
   FROM temperature
   WHERE value > $highest;

-- The limit of one plant:
-- CREATE QUERY north_limit FROM APPLICATION temperature_limit WITH (plant => 'north', highest => 35);
