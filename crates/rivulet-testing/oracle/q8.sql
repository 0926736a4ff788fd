SELECT DISTINCT p.id, p.name, make_timestamp(window_of(p.date_time, 10000000)) AS window_start
FROM person AS p
JOIN auction AS a ON p.id = a.seller AND window_of(p.date_time, 10000000) = window_of(a.date_time, 10000000)
