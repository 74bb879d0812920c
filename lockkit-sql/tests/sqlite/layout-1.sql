-- Layout 1 of the database. SQLite keeps the text of each statement, and the driver compares it
-- with the text here: any change, even of a space, is a new layout.

-- The last fencing token of the whole database. It outlives the rows of its locks, so that tokens
-- never fall back however often a name comes and goes.
CREATE TABLE lockkit_counter (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    last     INTEGER NOT NULL
) STRICT;
INSERT INTO lockkit_counter VALUES (1, 0);

-- Who holds which lock. A lock without a row is free.
CREATE TABLE lockkit_hold (
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    owner     TEXT    NOT NULL, -- 32 hexadecimal digits
    label     TEXT    NOT NULL, -- what the owner calls itself
    token     INTEGER NOT NULL,
    ttl       INTEGER NOT NULL, -- microseconds
    since     INTEGER NOT NULL, -- microseconds, counted on `clock`: when it was granted
    expires   INTEGER NOT NULL, -- microseconds, counted on `clock`
    clock     TEXT    NOT NULL, -- boot id of the host, colon, id of the time namespace
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- Who waits for which lock and wants to be served in order.
CREATE TABLE lockkit_place (
    arrival   INTEGER PRIMARY KEY, -- greater than that of every other place
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    owner     TEXT    NOT NULL UNIQUE,
    label     TEXT    NOT NULL,
    ttl       INTEGER NOT NULL,
    since     INTEGER NOT NULL, -- when it was first asked for
    expires   INTEGER NOT NULL,
    clock     TEXT    NOT NULL
) STRICT;
CREATE INDEX lockkit_place_of_name ON lockkit_place (namespace, name);
-- What has run out, and what does not tell when it does.
CREATE INDEX lockkit_place_end ON lockkit_place (namespace, name, clock, expires);
CREATE INDEX lockkit_place_begin ON lockkit_place (namespace, name, clock, expires - ttl);

PRAGMA application_id = 0x6c6b6974; -- "lkit"
PRAGMA user_version = 1;
