-- Find parking lots: tells a driver who crawls along, probably in search of one, where to park.
--
-- A car publishes its position to car/<car>/position:
--     {"ts": 1763712345678.5, "lat": 41.157943, "lon": -8.629105, "speed": 1.4, "status": "moving"}
-- Every second the last ten are looked at. If the average speed is below `slow` (metres a second), the three lots that
-- are nearest to the last position go to car/<car>/parking, nearest first, whenever they are others than before:
--     {"lots": "Lot 231, Lot 17, Lot 90"}
-- haversine_m is the distance of two places on the globe in metres.
--
-- The 300 lots in data/lots.csv do not exist: they were drawn at random, in Porto (rivulet-bench, tables.rs).

CREATE TABLE lots (name TEXT, lat DOUBLE, lon DOUBLE)
  FROM 'file:data/lots.csv' FORMAT CSV (header => true);

CREATE APPLICATION parking_lots (car TEXT, slow DOUBLE DEFAULT 2.0)
INPUT position (ts TIMESTAMP EVENT TIME, lat DOUBLE, lon DOUBLE, speed DOUBLE)
  FROM 'mqtt:car/{car}/position' FORMAT JSON
OUTPUT 'mqtt:car/{car}/parking' FORMAT JSON
AS SELECT last_value(near.lots) AS lots
   FROM position AS p
   CROSS JOIN LATERAL (
     SELECT string_agg(name, ', ') AS lots
     FROM (SELECT name FROM lots ORDER BY haversine_m(lat, lon, p.lat, p.lon) LIMIT 3)
   ) AS near
   GROUP BY hop(ts, INTERVAL '1 second', INTERVAL '10 seconds')
   HAVING avg(speed) < $slow
   EMIT ON CHANGE;

-- One driver's use of it:
-- CREATE QUERY ruis_parking FROM APPLICATION parking_lots WITH (car => 'rui', slow => 1.5);
