CREATE SOURCE device (id BIGINT NOT NULL, room TEXT, PRIMARY KEY (id)) FROM 'kafka:devices' FORMAT DEBEZIUM
    WITH (size => 'small');
SELECT bid.price, device.room FROM bid LEFT JOIN device ON bid.bidder = device.id;
