-- Elderly care: tells a relative when somebody has not moved for a while.
--
-- A sensor on the chest publishes acceleration to person/<person>/motion:
--     {"ts": 1763712345678.5, "ax": 0.02, "ay": -0.11, "az": 9.78}     ts: milliseconds since 1970; m/s2
-- Every five seconds the last `span` is looked at. The strength of the acceleration hardly varies when a person
-- neither walks nor turns: if its standard deviation is below `stillness` (m/s2), person/<person>/alarm receives
-- a line (fewer than thirty readings say nothing, so a sensor that was just switched on raises no alarm):
--     {"state": "inactive", "deviation": 0.031, "window_end": ...}

CREATE APPLICATION elderly_care
  (person TEXT, span INTERVAL DEFAULT INTERVAL '2 minutes', stillness DOUBLE DEFAULT 0.08)
INPUT motion (ts TIMESTAMP EVENT TIME, ax DOUBLE, ay DOUBLE, az DOUBLE)
  FROM 'mqtt:person/{person}/motion' FORMAT JSON
OUTPUT 'mqtt:person/{person}/alarm' FORMAT JSON
AS SELECT 'inactive' AS state,
          stddev(sqrt(ax * ax + ay * ay + az * az)) AS deviation,
          window_end
   FROM motion
   GROUP BY hop(ts, INTERVAL '5 seconds', $span)
   HAVING stddev(sqrt(ax * ax + ay * ay + az * az)) < $stillness
      AND count(*) >= 30;

-- One person's use of it:
-- CREATE QUERY grandma FROM APPLICATION elderly_care WITH (person => 'grandma', span => INTERVAL '5 minutes');
