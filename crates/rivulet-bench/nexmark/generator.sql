-- The streams of the auction, generated in the process.
CREATE SOURCE person FROM 'nexmark:person' WITH ({options}, lateness => INTERVAL '4 seconds');
CREATE SOURCE auction FROM 'nexmark:auction' WITH ({options}, lateness => INTERVAL '4 seconds');
CREATE SOURCE bid FROM 'nexmark:bid' WITH ({options}, lateness => INTERVAL '4 seconds');
