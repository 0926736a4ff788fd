CREATE SOURCE a (ts TIMESTAMP EVENT TIME, k TEXT, v BIGINT, d DOUBLE, g BIGINT NOT NULL) FROM 'file:{folder}/a.csv'
  FORMAT CSV (header => true) WITH (lateness => INTERVAL '10 seconds');
CREATE SOURCE b (ts TIMESTAMP EVENT TIME, k TEXT, v BIGINT, d DOUBLE, g BIGINT NOT NULL) FROM 'file:{folder}/b.csv'
  FORMAT CSV (header => true) WITH (lateness => INTERVAL '10 seconds');
CREATE TABLE tags (id BIGINT, name TEXT, weight DOUBLE) FROM 'file:{folder}/tags.csv' FORMAT CSV (header => true);
