-- Tables of the module `transaction`, layout 1, in the first schema of the search path.

CREATE TABLE lockkit_transaction_layout (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL
);

-- One row for each name that was ever locked. Locked, and never changed: whoever waits for a row
-- that is changed meanwhile has to queue again.
CREATE TABLE lockkit_row (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, name)
);

-- How often each was locked. Changed with each lock, so that a transaction whose snapshot is older
-- than the last one fails to serialize instead of reading what is out of date.
CREATE TABLE lockkit_turn (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    number    bigint NOT NULL,
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 50); -- room for the next versions of a row on its own page

-- The highest fencing token that each resource has seen.
CREATE TABLE lockkit_gate (
    namespace text COLLATE "C" NOT NULL,
    resource  text COLLATE "C" NOT NULL,
    token     bigint NOT NULL,
    PRIMARY KEY (namespace, resource)
) WITH (fillfactor = 50);

-- Locks the row of a name until the transaction ends; whether it could. Waits for `_patience`
-- milliseconds, null: for as long as it takes, 0: not at all. A wait that ends in vain leaves the
-- transaction as it was.
CREATE FUNCTION lockkit_row_lock(_namespace text, _name text, _patience integer)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout = 0 AS $$
DECLARE
    deadline timestamptz := clock_timestamp() + _patience * interval '1 ms';
BEGIN
    PERFORM FROM lockkit_row AS r
      WHERE r.namespace = _namespace AND r.name = _name FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM lockkit_row AS r WHERE r.namespace = _namespace AND r.name = _name;
        IF FOUND AND _patience = 0 THEN
            RETURN false;
        END IF;
        BEGIN
            LOOP -- again only if the row was not there
                IF _patience IS NOT NULL THEN
                    PERFORM set_config('lock_timeout', greatest(1, ceil(1000 *
                        extract(epoch FROM deadline - clock_timestamp())))::text, true);
                END IF;
                PERFORM FROM lockkit_row AS r
                  WHERE r.namespace = _namespace AND r.name = _name FOR UPDATE;
                EXIT WHEN FOUND;
                INSERT INTO lockkit_row (namespace, name) VALUES (_namespace, _name)
                ON CONFLICT DO NOTHING;
            END LOOP;
        EXCEPTION WHEN lock_not_available THEN
            RETURN false;
        END;
    END IF;
    INSERT INTO lockkit_turn AS t (namespace, name, number) VALUES (_namespace, _name, 1)
    ON CONFLICT (namespace, name) DO UPDATE SET number = t.number + 1;
    RETURN true;
END
$$;

-- The same for an advisory lock.
CREATE FUNCTION lockkit_xact_lock(_key bigint, _patience integer)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout = 0 AS $$
BEGIN
    IF pg_try_advisory_xact_lock(_key) THEN
        RETURN true;
    ELSIF _patience = 0 THEN
        RETURN false;
    END IF;
    BEGIN
        PERFORM set_config('lock_timeout', coalesce(_patience, 0)::text, true);
        PERFORM pg_advisory_xact_lock(_key);
        RETURN true;
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
END
$$;

INSERT INTO lockkit_transaction_layout (version) VALUES (1);
