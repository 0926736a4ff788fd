-- Electricity warning: tells a household when it has used more energy in a while than it wanted to.
--
-- The meter of each home publishes power and voltage to home/<home>/power, once every `period` seconds:
--     {"ts": 1763712345678.5, "kw": 1.384, "volt": 240.62}      ts: milliseconds since 1970
-- Every ten seconds the energy of the last `span` is added up, each reading standing for one period. If it exceeds
-- `limit_kwh`, home/<home>/warning receives:
--     {"energy_kwh": 0.412, "window_end": ...}

CREATE APPLICATION electricity_warning
  (home TEXT, span INTERVAL DEFAULT INTERVAL '10 minutes', limit_kwh DOUBLE, period DOUBLE DEFAULT 1.0)
INPUT power (ts TIMESTAMP EVENT TIME, kw DOUBLE, volt DOUBLE)
  FROM 'mqtt:home/{home}/power' FORMAT JSON
OUTPUT 'mqtt:home/{home}/warning' FORMAT JSON
AS SELECT sum(kw) * $period / 3600.0 AS energy_kwh,
          window_end
   FROM power
   GROUP BY hop(ts, INTERVAL '10 seconds', $span)
   HAVING sum(kw) * $period / 3600.0 > $limit_kwh;

-- One home's use of it:
-- CREATE QUERY kims_power FROM APPLICATION electricity_warning
--   WITH (home => '42', span => INTERVAL '5 minutes', limit_kwh => 0.2);
