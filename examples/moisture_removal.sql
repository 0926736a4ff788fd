-- Moisture removal: switches a dehumidifier.
--
-- A hygrometer in each home publishes relative humidity to home/<home>/humidity:
--     {"ts": 1763712345678.5, "value": 54.3}        ts: milliseconds since 1970; value: percent
-- Every five seconds the average of the last 30 seconds is compared with the limit of that home. When it is reached
-- the machine is switched on; it is switched off only when the average has fallen two percent below the limit, and
-- in between it stays what it was. home/<home>/dehumidifier receives changes only:
--     {"action": "on"}

CREATE APPLICATION moisture_removal (home TEXT, humidity_max DOUBLE DEFAULT 60.0)
INPUT humidity (ts TIMESTAMP EVENT TIME, value DOUBLE)
  FROM 'mqtt:home/{home}/humidity' FORMAT JSON
OUTPUT 'mqtt:home/{home}/dehumidifier' FORMAT JSON
AS SELECT CASE WHEN hysteresis(avg(value), $humidity_max - 2.0, $humidity_max) THEN 'on' ELSE 'off' END AS action
   FROM humidity
   GROUP BY hop(ts, INTERVAL '5 seconds', INTERVAL '30 seconds')
   EMIT ON CHANGE;

-- One home's use of it:
-- CREATE QUERY cellar FROM APPLICATION moisture_removal WITH (home => '42', humidity_max => 55);
