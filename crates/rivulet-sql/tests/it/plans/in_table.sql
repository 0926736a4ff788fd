SELECT auction, price FROM bid WHERE auction IN (SELECT key FROM side_input WHERE value > 1) AND price > 100
AND NOT EXISTS (SELECT 1 FROM side_input WHERE key > bidder AND value < price);
