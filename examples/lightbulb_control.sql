-- Lightbulb control: switches the light at home by where the car is.
--
-- A car publishes its position to car/<car>/position:
--     {"ts": 1763712345678.5, "lat": 41.157943, "lon": -8.629105, "speed": 11.4, "status": "moving"}
-- The light goes off when the car is `distance` (metres) away from home; it goes on again once the car has come back
-- to four fifths of that distance, so that it does not flicker at the border. car/<car>/light receives changes only:
--     {"light": "off"}
-- haversine_m is the distance of two places on the globe in metres; hysteresis becomes true at the upper limit and
-- false at the lower one, and in between it stays what it was.

CREATE APPLICATION lightbulb_control (car TEXT, home_lat DOUBLE, home_lon DOUBLE, distance DOUBLE DEFAULT 300.0)
INPUT position (ts TIMESTAMP EVENT TIME, lat DOUBLE, lon DOUBLE)
  FROM 'mqtt:car/{car}/position' FORMAT JSON
OUTPUT 'mqtt:car/{car}/light' FORMAT JSON
AS SELECT CASE WHEN hysteresis(haversine_m(lat, lon, $home_lat, $home_lon), 0.8 * $distance, $distance)
               THEN 'off' ELSE 'on' END AS light
   FROM position
   EMIT ON CHANGE;

-- One driver's use of it:
-- CREATE QUERY ruis_light FROM APPLICATION lightbulb_control
--   WITH (car => 'rui', home_lat => 41.1579, home_lon => -8.6291);
