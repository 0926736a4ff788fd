CREATE SOURCE device (id BIGINT, room TEXT) FROM 'kafka:devices' FORMAT JSON WITH (size => 'small');
SELECT bids.n, device.room FROM (SELECT count(*) AS n FROM bid) AS bids JOIN device ON bids.n = device.id;
