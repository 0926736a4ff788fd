-- Sessions: what each person does on a site without a pause of half an hour.
--
-- A site publishes a line for each view to site/<site>/view:
--     {"ts": 1763712345678, "person": "ann", "page": "/cart"}       ts: milliseconds since 1970
-- When a person has done nothing for `pause`, site/<site>/session receives
--     {"person": "ann", "views": 3, "first": "/", "last": "/pay", "seconds": 300.0, "window_start": ...}

CREATE APPLICATION sessions (site TEXT, pause INTERVAL DEFAULT INTERVAL '30 minutes')
INPUT views (ts TIMESTAMP EVENT TIME, person TEXT, page TEXT) FROM 'mqtt:site/{site}/view' FORMAT JSON
OUTPUT 'mqtt:site/{site}/session' FORMAT JSON
AS SELECT person, count(*) AS views, first_value(page) AS first, last_value(page) AS last,
          date_part('epoch', max(ts)) - date_part('epoch', min(ts)) AS seconds,
          window_start
   FROM views
   GROUP BY session(ts, $pause), person;

-- One site's use of it:
-- CREATE QUERY shop_sessions FROM APPLICATION sessions WITH (site => 'shop');
