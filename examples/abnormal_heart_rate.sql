-- Abnormal heart rate: tells a caretaker when a heart beats too fast for too much of a minute.
--
-- A chest strap publishes beats per minute to patient/<patient>/heart_rate:
--     {"ts": 1763712345678.5, "bpm": 104}           ts: milliseconds since 1970
-- Every five seconds the last minute is looked at. If more than one reading in ten lies above the patient's
-- threshold, patient/<patient>/alarm receives how many of them did, and the highest
-- (fewer than ten readings say nothing):
--     {"fraction": 0.25, "bpm_max": 171, "window_end": ...}

CREATE APPLICATION abnormal_heart_rate (patient TEXT, threshold DOUBLE DEFAULT 120.0)
INPUT heart_rate (ts TIMESTAMP EVENT TIME, bpm BIGINT)
  FROM 'mqtt:patient/{patient}/heart_rate' FORMAT JSON
OUTPUT 'mqtt:patient/{patient}/alarm' FORMAT JSON
AS SELECT CAST(count(*) FILTER (WHERE bpm > $threshold) AS DOUBLE) / count(*) AS fraction,
          max(bpm) AS bpm_max,
          window_end
   FROM heart_rate
   GROUP BY hop(ts, INTERVAL '5 seconds', INTERVAL '60 seconds')
   HAVING count(*) FILTER (WHERE bpm > $threshold) > 0.10 * count(*)
      AND count(*) >= 10;

-- One patient's use of it:
-- CREATE QUERY anna_heart FROM APPLICATION abnormal_heart_rate WITH (patient => 'anna', threshold => 130);
