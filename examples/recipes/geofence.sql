-- Geofence: tells when a vehicle enters or leaves a place.
--
-- A vehicle publishes its position to vehicle/<vehicle>/position:
--     {"ts": 1763712345678, "lat": 41.157943, "lon": -8.629105}
-- vehicle/<vehicle>/fence receives a line when it has come into the circle of `radius` metres, and one when it has
-- left; the first line says where it is at first:
--     {"ts": 1763712345678, "inside": true, "metres": 312.5}
-- haversine_m is the distance of two places on the globe in metres.

CREATE APPLICATION geofence (vehicle TEXT, lat DOUBLE, lon DOUBLE, radius DOUBLE DEFAULT 500.0)
INPUT position (ts TIMESTAMP EVENT TIME, lat DOUBLE, lon DOUBLE)
  FROM 'mqtt:vehicle/{vehicle}/position' FORMAT JSON
OUTPUT 'mqtt:vehicle/{vehicle}/fence' FORMAT JSON
AS SELECT ts,
          haversine_m(lat, lon, $lat, $lon) <= $radius AS inside,
          round(haversine_m(lat, lon, $lat, $lon)) AS metres
   FROM position
   QUALIFY changed(inside);

-- One vehicle's use of it:
-- CREATE QUERY depot FROM APPLICATION geofence WITH (vehicle => '7', lat => 41.1579, lon => -8.6291, radius => 500);
