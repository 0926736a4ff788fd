SELECT category, count(*) AS auctions FROM auction GROUP BY category ORDER BY auctions DESC, category LIMIT 3;
