-- The streams as tables, and what is called otherwise in DuckDB. {folder} has the files of one stream.
CREATE TABLE person AS SELECT * REPLACE (make_timestamp(date_time * 1000) AS date_time)
FROM read_csv('{folder}/person.csv', header = true, columns = {
  'id': 'BIGINT', 'name': 'VARCHAR', 'email_address': 'VARCHAR', 'credit_card': 'VARCHAR', 'city': 'VARCHAR', 'state': 'VARCHAR',
  'date_time': 'BIGINT', 'extra': 'VARCHAR'}) ORDER BY {order};
CREATE TABLE auction AS SELECT * REPLACE (make_timestamp(date_time * 1000) AS date_time, make_timestamp(expires * 1000) AS expires)
FROM read_csv('{folder}/auction.csv', header = true, columns = {
  'id': 'BIGINT', 'item_name': 'VARCHAR', 'description': 'VARCHAR', 'initial_bid': 'BIGINT', 'reserve': 'BIGINT', 'date_time': 'BIGINT',
  'expires': 'BIGINT', 'seller': 'BIGINT', 'category': 'BIGINT', 'extra': 'VARCHAR'}) ORDER BY {order};
CREATE TABLE bid AS SELECT * REPLACE (make_timestamp(date_time * 1000) AS date_time)
FROM read_csv('{folder}/bid.csv', header = true, columns = {
  'auction': 'BIGINT', 'bidder': 'BIGINT', 'price': 'BIGINT', 'channel': 'VARCHAR', 'url': 'VARCHAR', 'date_time': 'BIGINT',
  'extra': 'VARCHAR'}) ORDER BY {order};
CREATE TABLE side_input AS SELECT * FROM read_csv('{side_input}', header = true);
CREATE MACRO to_char(t, f) AS strftime(t, f);
-- The beginning of the window of this width that a time falls into, both in microseconds.
CREATE MACRO window_of(t, width) AS epoch_us(t) - epoch_us(t) % width;
