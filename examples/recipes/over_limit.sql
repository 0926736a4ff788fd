-- Over a limit: one alarm when a value goes over a limit, and one line when it is back below it.
--
-- A device publishes its readings to device/<device>/reading:
--     {"ts": 1763712345678, "value": 63.5}          ts: milliseconds since 1970
-- device/<device>/limit receives a line when the value goes over `most`, and one when it is back:
--     {"ts": 1763712345678, "value": 63.5, "alarm": true}
-- Nothing is said of a device that has been below the limit from the start.

CREATE APPLICATION over_limit (device TEXT, most DOUBLE)
INPUT readings (ts TIMESTAMP EVENT TIME, value DOUBLE NOT NULL) FROM 'mqtt:device/{device}/reading' FORMAT JSON
OUTPUT 'mqtt:device/{device}/limit' FORMAT JSON
AS SELECT ts, value, value > $most AS alarm
   FROM readings
   QUALIFY changed(alarm) AND (alarm OR lag(alarm));

-- One device's use of it, and another limit while it runs. An alarm that was told stays told:
-- CREATE QUERY boiler_limit FROM APPLICATION over_limit WITH (device => 'boiler', most => 60);
-- ALTER QUERY boiler_limit SET (most => 70);
