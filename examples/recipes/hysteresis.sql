-- Hysteresis: switches a fan on at an upper limit and off at a lower one, so that it does not flicker between.
--
-- A thermometer publishes to room/<room>/celsius:
--     {"ts": 1763712345678, "celsius": 24.5}        ts: milliseconds since 1970
-- room/<room>/fan receives changes only:
--     {"fan": "on"}

CREATE APPLICATION fan (room TEXT, low DOUBLE DEFAULT 22.0, high DOUBLE DEFAULT 25.0)
INPUT readings (ts TIMESTAMP EVENT TIME, celsius DOUBLE) FROM 'mqtt:room/{room}/celsius' FORMAT JSON
OUTPUT 'mqtt:room/{room}/fan' FORMAT JSON
AS SELECT CASE WHEN hysteresis(celsius, $low, $high) THEN 'on' ELSE 'off' END AS fan
   FROM readings
   EMIT ON CHANGE;

-- One room's use of it:
-- CREATE QUERY attic_fan FROM APPLICATION fan WITH (room => 'attic', low => 22, high => 25);
