SELECT window_end, kind, count(*) AS n FROM TABLE(TUMBLE(
    TABLE (SELECT date_time, 'person' AS kind FROM person UNION ALL SELECT date_time, 'auction' FROM auction),
    DESCRIPTOR(date_time), INTERVAL '1' MINUTE))
GROUP BY window_start, window_end, kind;
