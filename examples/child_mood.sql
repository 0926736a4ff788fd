-- Child mood: tells parents when something has kept their child excited for a while.
--
-- A wristband publishes beats per minute to child/<child>/heart_rate:
--     {"ts": 1763712345678.5, "bpm": 131}           ts: milliseconds since 1970
-- Every ten seconds the average of the last minute is taken. When three of them in a row lie between `lowest` and
-- `highest`, and not again before one did not, child/<child>/mood receives
--     {"bpm_mean": 128.4, "window_end": ...}
-- Above `highest` a child is running, not excited. lag(x, n) is what x was n windows ago.

CREATE APPLICATION child_mood (child TEXT, lowest DOUBLE DEFAULT 110.0, highest DOUBLE DEFAULT 170.0)
INPUT heart_rate (ts TIMESTAMP EVENT TIME, bpm BIGINT)
  FROM 'mqtt:child/{child}/heart_rate' FORMAT JSON
OUTPUT 'mqtt:child/{child}/mood' FORMAT JSON
AS SELECT avg(bpm) AS bpm_mean,
          window_end
   FROM heart_rate
   GROUP BY hop(ts, INTERVAL '10 seconds', INTERVAL '60 seconds')
   QUALIFY bpm_mean BETWEEN $lowest AND $highest
       AND lag(bpm_mean BETWEEN $lowest AND $highest, 1)
       AND lag(bpm_mean BETWEEN $lowest AND $highest, 2)
       AND lag(bpm_mean BETWEEN $lowest AND $highest, 3) IS NOT TRUE;

-- One family's use of it:
-- CREATE QUERY noras_mood FROM APPLICATION child_mood WITH (child => 'nora', lowest => 120, highest => 180);
