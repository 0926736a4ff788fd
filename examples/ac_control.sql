-- A/C control: keeps a home near its target temperature.
--
-- A thermometer in each home publishes its readings to home/<home>/temperature:
--     {"ts": 1763712345678.5, "value": 24.81}       ts: milliseconds since 1970; value: degrees Celsius
-- Every second the average of the last 30 seconds is compared with the target of that home. When what the
-- air conditioner should do changes, and only then, the new action goes to home/<home>/ac:
--     {"action": "cool"}                            cool, heat or off
-- Half a degree on either side of the target is left alone, so that the machine does not switch back and forth.

CREATE APPLICATION ac_control (home TEXT, target DOUBLE DEFAULT 24.0)
INPUT temperature (ts TIMESTAMP EVENT TIME, value DOUBLE)
  FROM 'mqtt:home/{home}/temperature' FORMAT JSON
OUTPUT 'mqtt:home/{home}/ac' FORMAT JSON
AS SELECT CASE WHEN avg(value) > $target + 0.5 THEN 'cool'
               WHEN avg(value) < $target - 0.5 THEN 'heat'
               ELSE 'off' END AS action
   FROM temperature
   GROUP BY hop(ts, INTERVAL '1 second', INTERVAL '30 seconds')
   EMIT ON CHANGE;

-- One home's use of it:
-- CREATE QUERY kims_ac FROM APPLICATION ac_control WITH (home => '42', target => 22.5);
