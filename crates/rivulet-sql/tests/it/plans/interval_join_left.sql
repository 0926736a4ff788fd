SELECT A.id, A.date_time, B.price
FROM auction A LEFT JOIN bid B
ON A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.date_time + INTERVAL '10 seconds';
