-- Device readings: what one device measures, out of a topic that all devices publish to.
--
-- Where a fleet's gateway has one topic for everybody, each reading says whose it is:
--     {"ts": 1763712345678.5, "value": 24.81, "device": "42"}       ts: milliseconds since 1970
-- Each query follows one device and passes its readings on, to device/<device>/reading.

CREATE APPLICATION device_readings (device TEXT)
INPUT reading (ts TIMESTAMP EVENT TIME, value DOUBLE, device TEXT)
  FROM 'mqtt:devices/readings' FORMAT JSON
OUTPUT 'mqtt:device/{device}/reading' FORMAT JSON
AS SELECT ts, value
   FROM reading
   WHERE device = $device;

-- The readings of one device:
-- CREATE QUERY boiler FROM APPLICATION device_readings WITH (device => '42');
