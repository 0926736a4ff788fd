-- Rising after a visit: tells a doctor when a patient's value climbs above the level that the doctor has set.
--
-- The doctor and the patient's device publish to patient/<patient>/events:
--     {"ts": 1763712345678, "source": "doctor", "value": 7.5}     the level to look out for
--     {"ts": 1763712399123, "source": "device", "value": 6.1}     a reading
-- If within an hour of the doctor's event two or more readings climb one after the other and end above the level,
-- patient/<patient>/rising receives the level, the climb, and how many readings it took:
--     {"level": 7.5, "lowest": 6.1, "highest": 7.8, "readings": 3, "ts": ...}
--
-- ANY is not defined, so every event may stand in its place: the climb may begin at any time after the visit. The question
-- mark makes it and CLIMB reluctant, so that the message comes with the first reading above the level.

CREATE APPLICATION rising_after_visit (patient TEXT, patience INTERVAL DEFAULT INTERVAL '1 hour')
INPUT events (ts TIMESTAMP EVENT TIME, source TEXT, value DOUBLE)
  FROM 'mqtt:patient/{patient}/events' FORMAT JSON
OUTPUT 'mqtt:patient/{patient}/rising' FORMAT JSON
AS SELECT level, lowest, highest, readings, ts
   FROM events MATCH_RECOGNIZE (
     MEASURES VISIT.value AS level,
              FIRST(CLIMB.value) AS lowest,
              ABOVE.value AS highest,
              count(CLIMB.*) + 1 AS readings,
              ABOVE.ts AS ts
     AFTER MATCH SKIP PAST LAST ROW
     PATTERN (VISIT ANY*? CLIMB+? ABOVE) WITHIN $patience
     DEFINE VISIT AS source = 'doctor',
            CLIMB AS source = 'device' AND (LAST(CLIMB.value, 1) IS NULL OR CLIMB.value > LAST(CLIMB.value, 1)),
            ABOVE AS source = 'device' AND ABOVE.value > LAST(CLIMB.value) AND ABOVE.value > VISIT.value
   );

-- One patient's use of it:
-- CREATE QUERY annas_glucose FROM APPLICATION rising_after_visit WITH (patient => 'anna');
