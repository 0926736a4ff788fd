-- Fire alarm: a temperature that climbs steeply and steadily means fire.
--
-- A thermometer in each home publishes its readings to home/<home>/temperature:
--     {"ts": 1763712345678.5, "value": 24.81}       ts: milliseconds since 1970; value: degrees Celsius
-- Every second a straight line is fitted through the last 20 seconds. The alarm goes to home/<home>/alarm when the
-- line climbs faster than `slope` (degrees a second) and the readings lie close to it, that is, when their standard
-- deviation around the line is below `noise` (degrees); a loose contact jumps about and is no fire:
--     {"degrees_per_second": 1.42, "value_max": 48.3, "window_end": ...}
-- A line through fewer than five readings says nothing, so a window with fewer is passed over.
-- var_pop(value) * (1 - regr_r2(...)) is the variance that the line leaves unexplained.

CREATE APPLICATION fire_alarm (home TEXT, slope DOUBLE DEFAULT 0.5, noise DOUBLE DEFAULT 1.0)
INPUT temperature (ts TIMESTAMP EVENT TIME, value DOUBLE)
  FROM 'mqtt:home/{home}/temperature' FORMAT JSON
OUTPUT 'mqtt:home/{home}/alarm' FORMAT JSON
AS SELECT regr_slope(value, date_part('epoch', ts)) AS degrees_per_second,
          max(value) AS value_max,
          window_end
   FROM temperature
   GROUP BY hop(ts, INTERVAL '1 second', INTERVAL '20 seconds')
   HAVING regr_slope(value, date_part('epoch', ts)) > $slope
      AND var_pop(value) * (1.0 - regr_r2(value, date_part('epoch', ts))) < $noise * $noise
      AND count(*) >= 5;

-- One home's use of it:
-- CREATE QUERY kims_fire_alarm FROM APPLICATION fire_alarm WITH (home => '42', slope => 0.4);
