-- Readings that are posted: an alarm for each device whose readings come by HTTP and not by MQTT.
--
-- A gateway on this machine posts readings to http://127.0.0.1:8090/readings, one or an array of them:
--     [{"device": "7", "ts": 1763712345678, "value": 84.5}]      ts: milliseconds since 1970
-- device/<device>/alarm receives a message when a reading is too high, and when one is not any more:
--     {"ts": 1763712345678, "value": 84.5, "alarm": true}
-- For posts from elsewhere write 'http:0.0.0.0:8090/readings', and give them a token: WITH (token => '...').
--
-- The field `device` says whose reading it is, and stands in the place of a topic. For messages of Kafka the address is
-- 'kafka:localhost:9092/readings'; without key_field, the key of the message says it.

CREATE APPLICATION posted (device TEXT, most DOUBLE DEFAULT 80.0)
INPUT readings (ts TIMESTAMP EVENT TIME, value DOUBLE) FROM 'http:127.0.0.1:8090/readings' FORMAT JSON
  WITH (key => '{device}', key_field => 'device')
OUTPUT 'mqtt:device/{device}/alarm' FORMAT JSON
AS SELECT ts, value, value > $most AS alarm
   FROM readings
   QUALIFY changed(alarm);

-- One device's use of it:
-- CREATE QUERY posted_pump FROM APPLICATION posted WITH (device => '7', most => 80);
