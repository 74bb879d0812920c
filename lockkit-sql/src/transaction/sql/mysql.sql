-- Tables of the module `transaction`, layout 1, in the current database.

CREATE TABLE IF NOT EXISTS lockkit_transaction_layout (
    only_row INTEGER NOT NULL PRIMARY KEY DEFAULT 1,
    version  INTEGER NOT NULL
) ENGINE = InnoDB;

-- One row for each name that was ever locked, and how often it was: this tells a transaction whose
-- snapshot is older than the last lock.
CREATE TABLE IF NOT EXISTS lockkit_row (
    namespace VARBINARY(64)  NOT NULL,
    name      VARBINARY(512) NOT NULL,
    turn      BIGINT         NOT NULL,
    PRIMARY KEY (namespace, name)
) ENGINE = InnoDB;

-- The highest fencing token that each resource has seen.
CREATE TABLE IF NOT EXISTS lockkit_gate (
    namespace VARBINARY(64)  NOT NULL,
    resource  VARBINARY(512) NOT NULL,
    token     BIGINT         NOT NULL,
    PRIMARY KEY (namespace, resource)
) ENGINE = InnoDB;

-- Locks the row of a name until the transaction ends; yields whether it could. Waiting for
-- `_patience` seconds in vain leaves the transaction as it was. Fails to serialize if the
-- transaction read something before the last one that had the lock was done.
--
-- MySQL cleans nothing up when a statement is killed: while it is changed, the session's time-out is
-- in a variable as well, for lockkit to put it back.
CREATE PROCEDURE IF NOT EXISTS lockkit_row_lock(
    IN _namespace VARBINARY(64), IN _name VARBINARY(512), IN _patience INTEGER
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _is_locked BOOLEAN DEFAULT TRUE;
    DECLARE _last, _seen BIGINT;
    DECLARE _before INTEGER DEFAULT @@SESSION.innodb_lock_wait_timeout;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        SET SESSION innodb_lock_wait_timeout = _before, @lockkit_before = NULL;
        RESIGNAL;
    END;
    -- A strict MySQL refuses less than a second.
    SET @lockkit_before = _before, SESSION innodb_lock_wait_timeout =
        IF(VERSION() LIKE '%MariaDB%', _patience, GREATEST(_patience, 1));
    BEGIN
        DECLARE EXIT HANDLER FOR 1205
        BEGIN
            -- Where the server is set up to roll back everything then, the user has to know.
            IF @@GLOBAL.innodb_rollback_on_timeout THEN
                RESIGNAL;
            END IF;
            SET _is_locked = FALSE;
        END;
        -- Not a locking read first: that locks the gap where a row is missing, and of two who do so
        -- none can insert. Nor INSERT IGNORE, which leaves all who wait with a shared lock.
        INSERT INTO lockkit_row (namespace, name, turn) VALUES (_namespace, _name, 0)
        ON DUPLICATE KEY UPDATE turn = turn;
    END;
    SET SESSION innodb_lock_wait_timeout = _before, @lockkit_before = NULL;
    IF _is_locked THEN
        SELECT turn INTO _last FROM lockkit_row
         WHERE namespace = _namespace AND name = _name FOR UPDATE;
        -- By the snapshot, which begins here if the transaction has read nothing yet.
        SELECT turn INTO _seen FROM lockkit_row WHERE namespace = _namespace AND name = _name;
        IF NOT (_seen <=> _last) THEN
            SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'the snapshot is older than the last lock';
        END IF;
        UPDATE lockkit_row SET turn = turn + 1 WHERE namespace = _namespace AND name = _name;
    END IF;
    SELECT _is_locked AS is_locked;
END;

INSERT IGNORE INTO lockkit_transaction_layout (only_row, version) VALUES (1, 1);
