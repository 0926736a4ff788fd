SELECT Q.seller, AVG(Q.final) OVER (PARTITION BY Q.seller ORDER BY Q.date_time ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
FROM (
    SELECT * FROM (
        SELECT A.id, A.seller, B.price AS final, B.date_time,
            ROW_NUMBER() OVER (PARTITION BY A.id, A.seller ORDER BY B.price DESC) AS rownum
        FROM auction A JOIN bid B ON A.id = B.auction
        WHERE B.date_time BETWEEN A.date_time AND A.expires
    ) WHERE rownum <= 1
) AS Q;
