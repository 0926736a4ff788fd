-- Find gas station: tells a driver which stations nearby have a price that suits.
--
-- A car publishes its position to car/<car>/position:
--     {"ts": 1763712345678.5, "lat": 41.157943, "lon": -8.629105, "speed": 11.4, "status": "moving"}
-- Of the stations within `radius` (metres) whose price lies between `lowest` and 30 cents more, the three nearest go to
-- car/<car>/stations, nearest first, whenever they are others than before (null where there is none):
--     {"stations": "Station 17, Station 102, Station 4"}
-- haversine_m is the distance of two places on the globe in metres.
--
-- The 200 stations in data/stations.csv do not exist: they were drawn at random, in Porto (rivulet-bench, tables.rs).
-- rivulet app register sends them to the server. A server that is to read the file by itself allows the folder,
-- `rivulet serve --set files.allow=examples`, and gets the script by rivulet sql; then REFRESH TABLE stations reads the
-- file again.

CREATE TABLE stations (name TEXT, lat DOUBLE, lon DOUBLE, price DOUBLE)
  FROM 'file:data/stations.csv' FORMAT CSV (header => true);

CREATE APPLICATION gas_station (car TEXT, lowest DOUBLE DEFAULT 1.4, radius DOUBLE DEFAULT 2000.0)
INPUT position (ts TIMESTAMP EVENT TIME, lat DOUBLE, lon DOUBLE)
  FROM 'mqtt:car/{car}/position' FORMAT JSON
OUTPUT 'mqtt:car/{car}/stations' FORMAT JSON
AS SELECT near.stations
   FROM position AS p
   CROSS JOIN LATERAL (
     SELECT string_agg(name, ', ') AS stations
     FROM (SELECT name FROM stations
           WHERE price BETWEEN $lowest AND $lowest + 0.3 AND haversine_m(lat, lon, p.lat, p.lon) < $radius
           ORDER BY haversine_m(lat, lon, p.lat, p.lon) LIMIT 3)
   ) AS near
   EMIT ON CHANGE;

-- One driver's use of it:
-- CREATE QUERY ruis_stations FROM APPLICATION gas_station WITH (car => 'rui', lowest => 1.3, radius => 3000);
