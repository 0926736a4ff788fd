-- Temperature profile: how often each tenth of a degree is measured, second by second.
--
-- All sensors of a plant publish to plant/<plant>/temperature, thousands of readings a second:
--     {"ts": 1763712345678.5, "value": 21.43}       ts: milliseconds since 1970
-- Each second what was measured goes to plant/<plant>/profile, a row for each tenth of a degree.
--
-- Its state is by key, so a query that is too much for one worker runs on several, each of which has some of the keys.

CREATE APPLICATION temperature_profile (plant TEXT, often BIGINT DEFAULT 1)
INPUT temperature (ts TIMESTAMP EVENT TIME, value DOUBLE)
  FROM 'mqtt:plant/{plant}/temperature' FORMAT JSON
OUTPUT 'mqtt:plant/{plant}/profile' FORMAT JSON
AS SELECT CAST(round(value * 10) AS BIGINT) AS tenth, count(*) AS readings, window_end
   FROM temperature
   GROUP BY tumble(ts, INTERVAL '1 second'), CAST(round(value * 10) AS BIGINT)
   HAVING count(*) >= $often;

-- What is common in one plant:
-- CREATE QUERY north_profile FROM APPLICATION temperature_profile WITH (plant => 'north', often => 10);
