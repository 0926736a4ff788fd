-- Remote child care: tells parents when a child leaves its safe places, and when it is back.
--
-- A watch publishes its position to child/<child>/position:
--     {"ts": 1763712345678.5, "lat": 39.904989, "lon": 116.405285, "alt": 44.1}
-- The safe places are home and school, each with a radius of `distance` (metres). child/<child>/whereabouts
-- receives a line when the place has changed, so a child that stays away is reported once:
--     {"place": "away", "metres": 312.5}            home, school or away; how far from the nearer of the two
-- haversine_m is the distance of two places on the globe in metres.

CREATE APPLICATION remote_child_care
  (child TEXT, home_lat DOUBLE, home_lon DOUBLE, school_lat DOUBLE, school_lon DOUBLE, distance DOUBLE DEFAULT 300.0)
INPUT position (ts TIMESTAMP EVENT TIME, lat DOUBLE, lon DOUBLE)
  FROM 'mqtt:child/{child}/position' FORMAT JSON
OUTPUT 'mqtt:child/{child}/whereabouts' FORMAT JSON
AS SELECT CASE WHEN haversine_m(lat, lon, $home_lat, $home_lon) <= $distance THEN 'home'
               WHEN haversine_m(lat, lon, $school_lat, $school_lon) <= $distance THEN 'school'
               ELSE 'away' END AS place,
          least(haversine_m(lat, lon, $home_lat, $home_lon),
                haversine_m(lat, lon, $school_lat, $school_lon)) AS metres
   FROM position
   QUALIFY changed(place);

-- One family's use of it:
-- CREATE QUERY mei FROM APPLICATION remote_child_care
--   WITH (child => 'mei', home_lat => 39.9050, home_lon => 116.4053, school_lat => 39.9121, school_lon => 116.4010,
--         distance => 200);
