-- Silent: tells when a device has sent nothing for five minutes.
--
-- A device publishes readings to device/<device>/reading:
--     {"ts": 1763712345678, "value": 1.5}           ts: milliseconds since 1970
-- After `after` without one, device/<device>/silent receives when the last came, and how many came before in a row:
--     {"last": 1763712345678, "readings": 17}
-- A session is over when nothing came for a while: nothing else is asked for. idle_timeout says from when on the clock
-- goes on without readings.

CREATE APPLICATION silent (device TEXT, after INTERVAL DEFAULT INTERVAL '5 minutes')
INPUT readings (ts TIMESTAMP EVENT TIME, value DOUBLE) FROM 'mqtt:device/{device}/reading' FORMAT JSON
  WITH (idle_timeout => INTERVAL '10 seconds')
OUTPUT 'mqtt:device/{device}/silent' FORMAT JSON
AS SELECT max(ts) AS last, count(*) AS readings
   FROM readings
   GROUP BY session(ts, $after);

-- One device's use of it:
-- CREATE QUERY pump_is_there FROM APPLICATION silent WITH (device => '7', after => INTERVAL '5 minutes');
