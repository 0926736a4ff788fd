-- Green house: tells a gardener when the temperature suddenly leaves its recent course.
--
-- A thermometer in each green house publishes its readings to greenhouse/<greenhouse>/temperature:
--     {"ts": 1763712345678.5, "value": 24.81}       ts: milliseconds since 1970; value: degrees Celsius
-- Every second the newest reading of the last minute is compared with the others. If it lies more than `deviations`
-- standard deviations of the others away from their mean, greenhouse/<greenhouse>/alarm receives
--     {"value": 27.9, "mean": 24.7, "window_end": ...}
--
-- "The others" need no second window: with n readings of mean m and variance v, and the newest one e above m,
-- the distance to the mean of the others exceeds k of their standard deviations exactly when
-- e2 n > k2 ((n - 1) v - e2). Fewer than ten readings are no course that one could leave.

CREATE APPLICATION green_house (greenhouse TEXT, deviations DOUBLE DEFAULT 3.0)
INPUT temperature (ts TIMESTAMP EVENT TIME, value DOUBLE)
  FROM 'mqtt:greenhouse/{greenhouse}/temperature' FORMAT JSON
OUTPUT 'mqtt:greenhouse/{greenhouse}/alarm' FORMAT JSON
AS SELECT last_value(value) AS value,
          avg(value) AS mean,
          window_end
   FROM temperature
   GROUP BY hop(ts, INTERVAL '1 second', INTERVAL '60 seconds')
   HAVING count(*) >= 10
      AND power(last_value(value) - avg(value), 2) * count(*)
          > $deviations * $deviations * ((count(*) - 1) * var_pop(value) - power(last_value(value) - avg(value), 2));

-- One green house's use of it:
-- CREATE QUERY tomatoes FROM APPLICATION green_house WITH (greenhouse => 'tomatoes', deviations => 3.5);
