SELECT auction, price FROM bid WHERE auction NOT IN (SELECT id FROM auction WHERE category = 10);
