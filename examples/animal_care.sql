-- Animal care: tells a farmer when the dog strays from the animals it guards.
--
-- The dog's collar publishes its position to herd/<herd>/dog, and so does the collar of each animal to
-- herd/<herd>/animal/<animal>:
--     {"ts": 1763712345678.5, "lat": -36.700012, "lon": 146.700034}
-- Whenever one of the two latest positions changes, their distance is looked at, if they are at most a minute apart.
-- herd/<herd>/stray receives a line when the dog has gone further than `distance` (metres), and one when it is back:
--     {"stray": true, "metres": 612.5}
-- LATEST(dog) is the dog's latest row; where both sides of a JOIN are read so, a row comes out whenever one of them
-- changes.
-- haversine_m is the distance of two places on the globe in metres.

CREATE APPLICATION animal_care (herd TEXT, distance DOUBLE DEFAULT 500.0, within INTERVAL DEFAULT INTERVAL '1 minute')
INPUT dog (ts TIMESTAMP EVENT TIME, lat DOUBLE, lon DOUBLE)
  FROM 'mqtt:herd/{herd}/dog' FORMAT JSON
INPUT animal (ts TIMESTAMP EVENT TIME, lat DOUBLE, lon DOUBLE)
  FROM 'mqtt:herd/{herd}/animal/+' FORMAT JSON
OUTPUT 'mqtt:herd/{herd}/stray' FORMAT JSON
AS SELECT haversine_m(d.lat, d.lon, a.lat, a.lon) > $distance AS stray,
          haversine_m(d.lat, d.lon, a.lat, a.lon) AS metres
   FROM LATEST(dog) AS d CROSS JOIN LATEST(animal) AS a
   WHERE a.ts BETWEEN d.ts - $within AND d.ts + $within
   QUALIFY changed(stray);

-- One farm's use of it:
-- CREATE QUERY upper_paddock FROM APPLICATION animal_care
--   WITH (herd => 'upper', distance => 800);
