-- N in a row: an alarm when so many readings in a row are too high, once, and a line when it is over.
--
-- A device publishes readings to device/<device>/reading:
--     {"ts": 1763712345678, "value": 84.5}          ts: milliseconds since 1970
-- device/<device>/alarm receives a line when the alarm comes or goes, and one when the first `rows` readings are there:
--     {"alarm": true}
--
-- Each reading closes a window of the last `rows`. If the least of them is too high, all are. The alarm is over with
-- the first reading that is not: in between, hysteresis keeps the alarm as it was.

CREATE APPLICATION n_in_a_row (device TEXT, most DOUBLE, rows BIGINT DEFAULT 3)
INPUT readings (ts TIMESTAMP EVENT TIME, value DOUBLE) FROM 'mqtt:device/{device}/reading' FORMAT JSON
OUTPUT 'mqtt:device/{device}/alarm' FORMAT JSON
AS SELECT hysteresis(CASE WHEN min(value) > $most THEN 1 WHEN last_value(value) > $most THEN 0 ELSE -1 END, -1, 1)
            AS alarm
   FROM readings
   GROUP BY count_window($rows, 1)
   EMIT ON CHANGE;

-- One device's use of it:
-- CREATE QUERY pump FROM APPLICATION n_in_a_row WITH (device => '7', most => 80, rows => 3);
