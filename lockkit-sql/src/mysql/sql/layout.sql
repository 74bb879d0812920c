-- Layout 1. Each statement may be repeated, and by many at once: whoever comes later finds what is
-- there. The version is told last, so that what has one is whole.
--
-- Text is kept as bytes, so that case and spaces count. Times are the server's, lengths and points
-- alike in microseconds, points counted from 1970.

-- Who holds which lock. The row outlives its holds, so that tokens go on from where they were.
CREATE TABLE IF NOT EXISTS lockkit_lock (
    namespace VARBINARY(64) NOT NULL,
    name      VARBINARY(512) NOT NULL,
    owner     VARBINARY(32),     -- 32 hexadecimal digits; null where nobody holds it
    label     VARBINARY(128),    -- what the owner calls itself
    token     BIGINT NOT NULL,   -- the last one given
    since     BIGINT NOT NULL,   -- when it was granted, or since when nobody holds it
    lease     BIGINT NOT NULL,   -- the longest lease that the owner has asked for
    expires   BIGINT NOT NULL,   -- when the hold ends; 0 where it was released
    queued    BIGINT NOT NULL,   -- until when somebody has a place
    awaited   BIGINT NOT NULL,   -- until when somebody listens
    beat      BIGINT NOT NULL,   -- rises by 2 with each grant, by 1 with each renewal
    settled   BIGINT NOT NULL,   -- the same, but within a statement, which tells so what it did
    PRIMARY KEY (namespace, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Who waits for which lock and is to be served in order.
CREATE TABLE IF NOT EXISTS lockkit_place (
    namespace VARBINARY(64) NOT NULL,
    name      VARBINARY(512) NOT NULL,
    owner     VARBINARY(32) NOT NULL,
    label     VARBINARY(128) NOT NULL,
    inbox     BIGINT NOT NULL,   -- where its process listens
    arrival   BIGINT NOT NULL,   -- given while the lock's row is locked
    since     BIGINT NOT NULL,   -- when the owner asked first
    expires   BIGINT NOT NULL,   -- a lease after the owner asked last
    PRIMARY KEY (namespace, name, owner),
    KEY lockkit_place_order (namespace, name, arrival),
    KEY lockkit_place_end (namespace, name, expires)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Which processes are to be told that a lock was let go, one at a time. They listen on a session that
-- sleeps, and holds a lock of GET_LOCK by which it is found.
CREATE TABLE IF NOT EXISTS lockkit_bell (
    namespace VARBINARY(64) NOT NULL,
    name      VARBINARY(512) NOT NULL,
    inbox     BIGINT NOT NULL,   -- of the process
    since     BIGINT NOT NULL,   -- when it began to wait
    told      BIGINT NOT NULL,   -- when it was told; 0 where it is to be, negative where it has heard
    expires   BIGINT NOT NULL,   -- a lease after it asked last
    PRIMARY KEY (namespace, name, inbox),
    KEY lockkit_bell_inbox (inbox, told),
    KEY lockkit_bell_end (expires)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Who holds which lock by a session: a lock of GET_LOCK, which alone decides. The row tells the rest,
-- and outlives the holds for the token's sake.
CREATE TABLE IF NOT EXISTS lockkit_session (
    locked    VARBINARY(64) NOT NULL,  -- what the server knows the lock by
    namespace VARBINARY(64) NOT NULL,
    name      VARBINARY(512) NOT NULL,
    owner     VARBINARY(32) NOT NULL,  -- who took it last
    label     VARBINARY(128) NOT NULL,
    session   VARBINARY(32) NOT NULL,  -- another lock, which the session holds all its life
    since     BIGINT NOT NULL,
    token     BIGINT NOT NULL,         -- the last one given
    PRIMARY KEY (locked)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS lockkit_layout (
    only_row TINYINT NOT NULL,
    version  INT NOT NULL,
    PRIMARY KEY (only_row)
) ENGINE = InnoDB;

INSERT IGNORE INTO lockkit_layout (only_row, version) VALUES (1, 1);
