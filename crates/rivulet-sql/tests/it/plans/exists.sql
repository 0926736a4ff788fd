SELECT id, name FROM person P WHERE EXISTS (SELECT 1 FROM auction A WHERE A.seller = P.id AND A.category = 10);
