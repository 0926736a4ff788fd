-- From start to stop: one line for each time that a machine ran, when it has stopped.
--
-- A machine publishes its power to machine/<machine>/power:
--     {"ts": 1763712345678, "kw": 7.5}          ts: milliseconds since 1970
-- machine/<machine>/run receives a line for each run:
--     {"began":1763712345678,"ended":1763712405678,"readings":4,"most_kw":7.5}
--
-- A reading above `high` opens a window, and the first one below `low` behind it is its last. Readings in between
-- belong to it, those outside to no window. No time passes for it: a machine that falls silent while it runs is still
-- running.

CREATE APPLICATION from_start_to_stop (machine TEXT, high DOUBLE DEFAULT 5.0, low DOUBLE DEFAULT 1.0)
INPUT power (ts TIMESTAMP EVENT TIME, kw DOUBLE) FROM 'mqtt:machine/{machine}/power' FORMAT JSON
OUTPUT 'mqtt:machine/{machine}/run' FORMAT JSON
AS SELECT window_start AS began, window_end AS ended, count(*) AS readings, max(kw) AS most_kw
   FROM power
   GROUP BY state_window(kw > $high, kw < $low);

-- One machine's use of it:
-- CREATE QUERY press FROM APPLICATION from_start_to_stop WITH (machine => 'press', high => 5, low => 1);
