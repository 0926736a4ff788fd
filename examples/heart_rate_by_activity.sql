-- Heart rate by activity: as abnormal heart rate, with a threshold for what the person does.
--
-- A wristband publishes beats per minute and the activity to wearer/<wearer>/heart_rate:
--     {"ts": 1763712345678.5, "bpm": 104, "activity": 4}
-- Activities are those of the PAMAP2 recordings: 1 lying, 2 sitting, 3 standing, 4 walking, 5 running, 9 watching television,
-- 10 working at a computer, 11 driving, 24 jumping rope; all others count as walking.
-- Every five seconds the last minute is looked at. If more than one reading in ten lies above the threshold of its own
-- activity, wearer/<wearer>/alarm receives how many of them did, the highest, and what the person does now
-- (fewer than ten readings say nothing):
--     {"fraction": 0.25, "bpm_max": 131, "activity": 1, "window_end": ...}

CREATE APPLICATION heart_rate_by_activity (wearer TEXT, lying DOUBLE DEFAULT 100.0, sitting DOUBLE DEFAULT 110.0,
                                           walking DOUBLE DEFAULT 140.0, running DOUBLE DEFAULT 190.0)
INPUT heart_rate (ts TIMESTAMP EVENT TIME, bpm BIGINT, activity BIGINT)
  FROM 'mqtt:wearer/{wearer}/heart_rate' FORMAT JSON
OUTPUT 'mqtt:wearer/{wearer}/alarm' FORMAT JSON
AS SELECT CAST(count(*) FILTER (WHERE bpm > CASE WHEN activity = 1 THEN $lying
                                                 WHEN activity IN (2, 3, 9, 10, 11) THEN $sitting
                                                 WHEN activity IN (5, 24) THEN $running
                                                 ELSE $walking END) AS DOUBLE) / count(*) AS fraction,
          max(bpm) AS bpm_max,
          last_value(activity) AS activity,
          window_end
   FROM heart_rate
   GROUP BY hop(ts, INTERVAL '5 seconds', INTERVAL '60 seconds')
   HAVING fraction > 0.10 AND count(*) >= 10;

-- One person's use of it:
-- CREATE QUERY annas_pulse FROM APPLICATION heart_rate_by_activity WITH (wearer => 'anna', running => 180);
