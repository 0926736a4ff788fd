-- Lightbulb control: switches the light at home by where the car is.
--
-- A car publishes its position to car/<car>/position:
--     {"ts": 1763712345678.5, "lat": 41.157943, "lon": -8.629105, "speed": 11.4, "status": "moving"}
-- Farther from home than `distance` (metres) the light goes off; it goes on again once the car has come back to
-- four fifths of that distance. In between nothing is said, so that what was said last holds;
-- car/<car>/light receives changes only:
--     {"light": "off"}
-- haversine_m is the distance of two places on the globe in metres.

CREATE APPLICATION lightbulb_control (car TEXT, home_lat DOUBLE, home_lon DOUBLE, distance DOUBLE DEFAULT 300.0)
INPUT position (ts TIMESTAMP EVENT TIME, lat DOUBLE, lon DOUBLE)
  FROM 'mqtt:car/{car}/position' FORMAT JSON
OUTPUT 'mqtt:car/{car}/light' FORMAT JSON
AS SELECT CASE WHEN haversine_m(lat, lon, $home_lat, $home_lon) > $distance THEN 'off' ELSE 'on' END AS light
   FROM position
   WHERE haversine_m(lat, lon, $home_lat, $home_lon) NOT BETWEEN 0.8 * $distance AND $distance
   EMIT ON CHANGE;

-- One driver's use of it:
-- CREATE QUERY ruis_light FROM APPLICATION lightbulb_control
--   WITH (car => 'rui', home_lat => 41.1579, home_lon => -8.6291);
