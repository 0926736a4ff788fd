-- Points of interest: tells a walker what is near.
--
-- A phone publishes its position to walker/<walker>/position:
--     {"ts": 1763712345678.5, "lat": 39.904989, "lon": 116.405285, "alt": 44.1}
-- The `most` nearest of a thousand places go to walker/<walker>/nearby, nearest first, whenever they are others than
-- before:
--     {"places": "Museum 23, Park 7, Cafe 230"}
-- haversine_m is the distance of two places on the globe in metres.
--
-- The places in data/places.csv do not exist: they were drawn at random, in Beijing (rivulet-bench, tables.rs).

CREATE TABLE places (name TEXT, lat DOUBLE, lon DOUBLE)
  FROM 'file:data/places.csv' FORMAT CSV (header => true);

CREATE APPLICATION points_of_interest (walker TEXT, most BIGINT DEFAULT 3)
INPUT position (ts TIMESTAMP EVENT TIME, lat DOUBLE, lon DOUBLE)
  FROM 'mqtt:walker/{walker}/position' FORMAT JSON
OUTPUT 'mqtt:walker/{walker}/nearby' FORMAT JSON
AS SELECT near.places
   FROM position AS p
   CROSS JOIN LATERAL (
     SELECT string_agg(name, ', ') AS places
     FROM (SELECT name FROM places ORDER BY haversine_m(lat, lon, p.lat, p.lon) LIMIT $most)
   ) AS near
   EMIT ON CHANGE;

-- One walker's use of it:
-- CREATE QUERY mei_nearby FROM APPLICATION points_of_interest WITH (walker => 'mei', most => 5);
