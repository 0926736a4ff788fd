-- Rate of change: tells when the level of a tank rises or falls too fast.
--
-- A gauge publishes to tank/<tank>/level, at any interval:
--     {"ts": 1763712345678, "level": 104.5}         ts: milliseconds since 1970; level: litres
-- If the level changes by more than `most` litres a minute from one reading to the next, tank/<tank>/alarm receives
--     {"ts": 1763712345678, "level": 105.0, "litres_per_minute": 4.0}

CREATE APPLICATION rate_of_change (tank TEXT, most DOUBLE)
INPUT gauge (ts TIMESTAMP EVENT TIME, level DOUBLE) FROM 'mqtt:tank/{tank}/level' FORMAT JSON
OUTPUT 'mqtt:tank/{tank}/alarm' FORMAT JSON
AS SELECT ts, level,
          (level - lag(level)) * 60.0 / (date_part('epoch', ts) - lag(date_part('epoch', ts))) AS litres_per_minute
   FROM gauge
   QUALIFY abs(litres_per_minute) > $most;

-- One tank's use of it:
-- CREATE QUERY north_tank FROM APPLICATION rate_of_change WITH (tank => 'north', most => 2);
