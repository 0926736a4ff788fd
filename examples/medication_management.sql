-- Medication management: some medicine spoils when it is stored too cold or too warm.
--
-- A thermometer in each medicine cabinet publishes its readings to cabinet/<cabinet>/temperature:
--     {"ts": 1763712345678.5, "value": 7.42}        ts: milliseconds since 1970; value: degrees Celsius
-- Every ten seconds the extremes of the last minute are compared with the range that the medicine bears. If it was
-- left, cabinet/<cabinet>/alarm receives
--     {"value_min": 7.3, "value_max": 9.1, "window_end": ...}

CREATE APPLICATION medication_management (cabinet TEXT, lowest DOUBLE DEFAULT 2.0, highest DOUBLE DEFAULT 8.0)
INPUT temperature (ts TIMESTAMP EVENT TIME, value DOUBLE)
  FROM 'mqtt:cabinet/{cabinet}/temperature' FORMAT JSON
OUTPUT 'mqtt:cabinet/{cabinet}/alarm' FORMAT JSON
AS SELECT min(value) AS value_min,
          max(value) AS value_max,
          window_end
   FROM temperature
   GROUP BY hop(ts, INTERVAL '10 seconds', INTERVAL '60 seconds')
   HAVING min(value) < $lowest OR max(value) > $highest;

-- One cabinet's use of it:
-- CREATE QUERY insulin FROM APPLICATION medication_management
--   WITH (cabinet => 'ward-3', lowest => 2, highest => 8);
