-- Visits of web pages, generated in the process.
CREATE SOURCE visits FROM 'hibench:' WITH ({options}, lateness => INTERVAL '0 seconds');
