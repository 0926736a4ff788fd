SELECT auction, price FROM bid WHERE price > 100
WITH (fuse => 'none');
