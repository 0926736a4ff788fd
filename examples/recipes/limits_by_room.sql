-- Limits by room from a table: each room has limits of its own, which stand in a file and change while queries run.
--
-- A home publishes the readings of all its rooms to home/<home>/celsius:
--     {"ts": 1763712000000, "room": "cellar", "celsius": 15.5}
-- A reading that is beyond the limits of its room goes to home/<home>/alarm:
--     {"ts": 1763712000000, "room": "cellar", "celsius": 15.5, "alarm": "too warm"}
-- A room that is not in the table has no limits.
--
-- rivulet app register sends the rows of the table to the server; again with --replace, it sends other ones.

CREATE TABLE limits (room TEXT NOT NULL, low DOUBLE, high DOUBLE)
  FROM 'file:data/limits.csv' FORMAT CSV (header => true);

CREATE APPLICATION limits_by_room (home TEXT)
INPUT readings (ts TIMESTAMP EVENT TIME, room TEXT, celsius DOUBLE) FROM 'mqtt:home/{home}/celsius' FORMAT JSON
OUTPUT 'mqtt:home/{home}/alarm' FORMAT JSON
AS SELECT ts, l.room, celsius, CASE WHEN celsius < low THEN 'too cold' ELSE 'too warm' END AS alarm
   FROM readings AS r JOIN limits AS l ON l.room = r.room
   WHERE celsius NOT BETWEEN low AND high;

-- CREATE QUERY home_7_limits FROM APPLICATION limits_by_room WITH (home => '7');
