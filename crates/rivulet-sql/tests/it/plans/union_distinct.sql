SELECT id FROM person UNION SELECT seller FROM auction;
