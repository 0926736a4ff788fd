-- Users by hour: how many different people used a site in each hour.
--
-- A site publishes a line for each view to site/<site>/view:
--     {"ts": 1763712345678, "person": "ann"}        ts: milliseconds since 1970
-- At the end of each hour site/<site>/users receives
--     {"users": 3, "views": 17, "window_start": ...}

CREATE APPLICATION users_by_hour (site TEXT)
INPUT views (ts TIMESTAMP EVENT TIME, person TEXT) FROM 'mqtt:site/{site}/view' FORMAT JSON
OUTPUT 'mqtt:site/{site}/users' FORMAT JSON
AS SELECT count(DISTINCT person) AS users, count(*) AS views, window_start
   FROM views
   GROUP BY tumble(ts, INTERVAL '1 hour');

-- One site's use of it:
-- CREATE QUERY shop_users FROM APPLICATION users_by_hour WITH (site => 'shop');
