-- The streams of the auction, read from files that were generated before.
CREATE SOURCE person (
  id BIGINT NOT NULL, name TEXT NOT NULL, email_address TEXT NOT NULL, credit_card TEXT NOT NULL, city TEXT NOT NULL,
  state TEXT NOT NULL, date_time TIMESTAMP EVENT TIME, extra TEXT NOT NULL)
FROM 'file:{folder}/person.{ending}' FORMAT {format} WITH (lateness => INTERVAL '4 seconds');

CREATE SOURCE auction (
  id BIGINT NOT NULL, item_name TEXT NOT NULL, description TEXT NOT NULL, initial_bid BIGINT NOT NULL, reserve BIGINT NOT NULL,
  date_time TIMESTAMP EVENT TIME, expires TIMESTAMP NOT NULL, seller BIGINT NOT NULL, category BIGINT NOT NULL, extra TEXT NOT NULL)
FROM 'file:{folder}/auction.{ending}' FORMAT {format} WITH (lateness => INTERVAL '4 seconds');

CREATE SOURCE bid (
  auction BIGINT NOT NULL, bidder BIGINT NOT NULL, price BIGINT NOT NULL, channel TEXT NOT NULL, url TEXT NOT NULL,
  date_time TIMESTAMP EVENT TIME, extra TEXT NOT NULL)
FROM 'file:{folder}/bid.{ending}' FORMAT {format} WITH (lateness => INTERVAL '4 seconds');
