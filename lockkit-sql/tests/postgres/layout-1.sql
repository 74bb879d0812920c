-- Layout 1: tables and functions, in the first schema of the search path. The driver compares the
-- functions that it finds with the text here: any change, even of a space, is a new layout.
--
-- Times are the server's, lengths and points alike in microseconds, points counted from 1970.

CREATE TABLE lockkit_layout (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL
);

-- Who holds which lock. The row outlives its holds, so that tokens go on from where they were.
CREATE TABLE lockkit_lock (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    owner     text COLLATE "C",         -- 32 hexadecimal digits; null where nobody holds it
    label     text,                     -- what the owner calls itself
    token     bigint NOT NULL,          -- the last one given
    since     bigint NOT NULL,          -- when it was granted
    lease     bigint NOT NULL,          -- the longest lease that the owner has asked for
    expires   bigint NOT NULL,          -- when the hold ends, or since when nobody holds it
    beat      bigint NOT NULL,          -- rises with each grant and each renewal
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 50); -- room for the next versions of a row on its own page

-- Who waits for which lock.
CREATE TABLE lockkit_place (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    owner     text COLLATE "C" PRIMARY KEY, -- alone, so that no other index looks as good
    label     text NOT NULL,
    inbox     text NOT NULL,            -- the channel on which the owner hears its news
    turn      smallint NOT NULL,        -- 0: in order; 1: in no order, behind all of those
    arrival   bigint NOT NULL GENERATED ALWAYS AS IDENTITY, -- given while the lock's row is locked
    since     bigint NOT NULL,          -- when the owner asked first
    lease     bigint NOT NULL,          -- the longest lease that it has asked for
    expires   bigint NOT NULL           -- a lease after the owner asked last
);
CREATE INDEX lockkit_place_order ON lockkit_place (namespace, name, turn, arrival);
CREATE INDEX lockkit_place_end ON lockkit_place (namespace, name, expires);

CREATE FUNCTION lockkit_now() RETURNS bigint LANGUAGE sql AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- What every request that writes begins with. All of it ends with the request.
CREATE FUNCTION lockkit_begin(_patience integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- The wait for a row that another session keeps locked ends, in milliseconds, before the
    -- client's does: the client then knows that nothing was done, and no session is left waiting.
    PERFORM set_config('lock_timeout', _patience::text, true);
    -- A grant that was acknowledged must survive a crash of the server.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- Drops the places that have run out and returns the first living one: of those in order, if there
-- are any. Whoever calls this, or what follows, keeps the lock's row locked.
CREATE FUNCTION lockkit_first_place(_namespace text, _name text, _now bigint)
RETURNS lockkit_place LANGUAGE plpgsql AS $$
DECLARE
    first lockkit_place;
BEGIN
    DELETE FROM lockkit_place AS p
     WHERE p.namespace = _namespace AND p.name = _name AND p.expires <= _now;
    SELECT * INTO first FROM lockkit_place AS p
     WHERE p.namespace = _namespace AND p.name = _name ORDER BY p.turn, p.arrival LIMIT 1;
    RETURN first;
END
$$;

-- Whether a session listens there. It keeps the first 64 bits of the inbox's digits locked, which it
-- shares with its like only, and the server unlocks them when it ends. What is locked here for a
-- look is unlocked at once, not by the end of the request, lest others take it for a listener; and
-- in one expression, so that no cancelling comes in between. Who is refused looks again, since it may
-- have met another who did.
CREATE FUNCTION lockkit_listens(_inbox text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    high integer := ('x' || substr(_inbox, 9, 8))::bit(32)::integer;
    low  integer := ('x' || substr(_inbox, 17, 8))::bit(32)::integer;
BEGIN
    RETURN CASE WHEN pg_try_advisory_lock(high, low) THEN NOT pg_advisory_unlock(high, low)
                WHEN pg_try_advisory_lock(high, low) THEN NOT pg_advisory_unlock(high, low)
                ELSE true END;
END
$$;

-- Gives the lock, which nobody holds, to a place, for as long as the place would have lived: its
-- owner vouches from the ask that set the end of the place.
CREATE FUNCTION lockkit_hand_over(_first lockkit_place, _now bigint)
RETURNS lockkit_lock LANGUAGE plpgsql AS $$
DECLARE
    lock lockkit_lock;
BEGIN
    UPDATE lockkit_lock AS l
       SET owner = _first.owner, label = _first.label, token = greatest(l.token + 1, _now),
           since = _now, lease = _first.lease, expires = _first.expires, beat = l.beat + 1
     WHERE l.namespace = _first.namespace AND l.name = _first.name
    RETURNING l.* INTO lock;
    DELETE FROM lockkit_place AS p WHERE p.owner = _first.owner;
    PERFORM pg_notify(_first.inbox, concat_ws(E'\n', lock.namespace, lock.name,
        concat_ws(' ', 'granted', lock.owner, lock.token)));
    RETURN lock;
END
$$;

-- Ends the hold, if there is one, in favour of the first place. Of those in no order it is the first
-- where somebody listens: the dead hear nothing, and lose their place. Who is alive after all leaves
-- another when it asks.
CREATE FUNCTION lockkit_let_go(_lock lockkit_lock, _now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first lockkit_place;
BEGIN
    LOOP
        first := lockkit_first_place(_lock.namespace, _lock.name, _now);
        EXIT WHEN first.owner IS NULL OR first.turn = 0 OR lockkit_listens(first.inbox);
        DELETE FROM lockkit_place AS p WHERE p.owner = first.owner;
    END LOOP;
    -- Commits with news stand in line, all of the server: so none where nobody waits.
    IF first.owner IS NOT NULL THEN
        PERFORM lockkit_hand_over(first, _now);
    ELSIF _lock.owner IS NOT NULL THEN
        UPDATE lockkit_lock AS l SET owner = NULL, label = NULL, expires = _now
         WHERE l.namespace = _lock.namespace AND l.name = _lock.name;
    END IF;
END
$$;

-- Takes the lock if nobody holds it or waits before `_owner`, or if `_owner` has it already. Who has
-- an inbox to be told in, and is refused, leaves a place. Who observes takes over a hold of another's
-- that has run out only if it is as it was seen.
-- `last_token`, `last_beat` and `last_lease` are those of the hold, whoever has it; `remaining` is
-- what is left of another's.
CREATE FUNCTION lockkit_take(
    _namespace text, _name text, _owner text, _label text, _ttl bigint, _inbox text,
    _fair boolean, _observes boolean, _seen_token bigint, _seen_beat bigint, _patience integer,
    OUT is_granted boolean, OUT last_token bigint, OUT remaining bigint,
    OUT last_beat bigint, OUT last_lease bigint
) LANGUAGE plpgsql AS $$
DECLARE
    lock  lockkit_lock;
    first lockkit_place;
    now   bigint;
BEGIN
    is_granted := false;
    -- Who leaves no place is mostly refused here, which locks and writes nothing. A place has to
    -- last for a lease from each ask, since its owner vouches from the last one that was answered.
    IF _inbox IS NULL THEN
        SELECT * INTO lock FROM lockkit_lock AS l WHERE l.namespace = _namespace AND l.name = _name;
        now := lockkit_now();
        IF lock.owner <> _owner AND lock.expires > now THEN
            last_token := lock.token;
            remaining := lock.expires - now;
            RETURN;
        END IF;
    END IF;

    PERFORM lockkit_begin(_patience);
    LOOP -- again only if the row was swept in between
        SELECT * INTO lock FROM lockkit_lock AS l
         WHERE l.namespace = _namespace AND l.name = _name FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO lockkit_lock (namespace, name, token, since, lease, expires, beat)
        VALUES (_namespace, _name, 0, 0, 0, 0, 0) ON CONFLICT DO NOTHING;
    END LOOP;
    -- Not the time at which the wait for the row began.
    now := lockkit_now();

    IF lock.owner = _owner AND lock.expires > now THEN
        UPDATE lockkit_lock AS l
           SET expires = greatest(l.expires, now + _ttl), lease = greatest(l.lease, _ttl),
               beat = l.beat + 1
         WHERE l.namespace = _namespace AND l.name = _name;
        is_granted := true;
        last_token := lock.token;
        RETURN;
    END IF;

    IF lock.owner IS NULL
       OR lock.expires <= now AND (NOT _observes OR lock.owner = _owner
                                   OR lock.token = _seen_token AND lock.beat = _seen_beat)
    THEN
        first := lockkit_first_place(_namespace, _name, now);
        IF first.owner IS NULL OR first.owner = _owner OR first.turn > 0 THEN
            UPDATE lockkit_lock AS l
               SET owner = _owner, label = _label, token = greatest(l.token + 1, now),
                   since = now, lease = _ttl, expires = now + _ttl, beat = l.beat + 1
             WHERE l.namespace = _namespace AND l.name = _name
            RETURNING l.token INTO last_token;
            IF first.owner IS NOT NULL THEN
                DELETE FROM lockkit_place AS p WHERE p.owner = _owner;
            END IF;
            is_granted := true;
            RETURN;
        END IF;
        lock := lockkit_hand_over(first, now);
    END IF;

    last_token := lock.token;
    last_beat := lock.beat;
    last_lease := lock.lease;
    remaining := lock.expires - now;
    IF _inbox IS NOT NULL THEN
        UPDATE lockkit_place AS p
           SET expires = greatest(p.expires, now + _ttl), lease = greatest(p.lease, _ttl)
         WHERE p.owner = _owner;
        IF NOT FOUND THEN
            -- Lest the dead pile up behind the living.
            DELETE FROM lockkit_place AS p
             WHERE p.namespace = _namespace AND p.name = _name AND p.expires <= now;
            INSERT INTO lockkit_place
                (namespace, name, owner, label, inbox, turn, since, lease, expires)
            VALUES (_namespace, _name, _owner, _label, _inbox, CASE WHEN _fair THEN 0 ELSE 1 END,
                    now, _ttl, now + _ttl);
            -- Whoever waits for the row of the lock with a snapshot from before has to begin anew.
            UPDATE lockkit_lock AS l SET beat = l.beat
             WHERE l.namespace = _namespace AND l.name = _name;
        END IF;
    END IF;
END
$$;

-- Keeps places for another TTL, which `_owners` have had before; whose of them stand, and what is
-- left of the hold.
CREATE FUNCTION lockkit_stay(
    _namespace text, _name text, _owners text[], _ttl bigint, _patience integer
) RETURNS TABLE (owner text, remaining bigint) LANGUAGE plpgsql AS $$
DECLARE
    lock lockkit_lock;
    now  bigint;
BEGIN
    PERFORM lockkit_begin(_patience);
    SELECT * INTO lock FROM lockkit_lock AS l
     WHERE l.namespace = _namespace AND l.name = _name FOR UPDATE;
    now := lockkit_now();
    RETURN QUERY
    UPDATE lockkit_place AS p
       SET expires = greatest(p.expires, now + _ttl), lease = greatest(p.lease, _ttl)
     WHERE p.owner = ANY (_owners) AND p.expires > now
    RETURNING p.owner, coalesce(lock.expires, 0) - now;
END
$$;

-- Makes the hold of `_owner` last for another full TTL; whether there is one. Never shortens it.
CREATE FUNCTION lockkit_renew(
    _namespace text, _name text, _owner text, _ttl bigint, _patience integer
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lockkit_begin(_patience);
    UPDATE lockkit_lock AS l
       SET expires = greatest(l.expires, lockkit_now() + _ttl), lease = greatest(l.lease, _ttl),
           beat = l.beat + 1
     WHERE l.namespace = _namespace AND l.name = _name AND l.owner = _owner
       AND l.expires > lockkit_now();
    RETURN FOUND;
END
$$;

-- The same for several holds; whose of them it made last. Leaves out what somebody else has locked,
-- lest one lock hold up the others.
CREATE FUNCTION lockkit_renew_together(
    _namespaces text[], _names text[], _owners text[], _ttl bigint, _patience integer
) RETURNS SETOF text LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM lockkit_begin(_patience);
    RETURN QUERY
    UPDATE lockkit_lock AS l
       SET expires = greatest(l.expires, lockkit_now() + _ttl), lease = greatest(l.lease, _ttl),
           beat = l.beat + 1
     WHERE l.ctid = ANY (ARRAY(
        SELECT hold.ctid
          FROM unnest(_namespaces, _names, _owners) AS wanted (namespace, name, owner),
               LATERAL (SELECT h.ctid FROM lockkit_lock AS h
                         WHERE h.namespace = wanted.namespace AND h.name = wanted.name
                           AND h.owner = wanted.owner AND h.expires > lockkit_now()
                           FOR UPDATE SKIP LOCKED) AS hold))
    RETURNING l.owner;
END
$$;

-- Removes every trace of `_owner`; whether it held the lock until now. A lock that is free then
-- goes on to who waits; one whose hold has run out does not, where that is to be observed.
CREATE FUNCTION lockkit_release(
    _namespace text, _name text, _owner text, _observes boolean, _patience integer
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    lock lockkit_lock;
    now  bigint;
BEGIN
    PERFORM lockkit_begin(_patience);
    SELECT * INTO lock FROM lockkit_lock AS l
     WHERE l.namespace = _namespace AND l.name = _name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    now := lockkit_now();
    IF lock.owner IS DISTINCT FROM _owner THEN
        DELETE FROM lockkit_place AS p WHERE p.owner = _owner;
        IF lock.owner IS NOT NULL AND (_observes OR lock.expires > now) THEN
            RETURN false;
        END IF;
    END IF;
    PERFORM lockkit_let_go(lock, now);
    RETURN lock.owner IS NOT DISTINCT FROM _owner AND lock.expires > now;
END
$$;

-- Ends the hold, if it is that of `_owner` or `_owner` is null, and returns it as it was. Who
-- observes ends also one that has run out, which others may not take over yet.
CREATE FUNCTION lockkit_break(
    _namespace text, _name text, _owner text, _observes boolean, _patience integer
) RETURNS TABLE (owner text, label text, token bigint, age bigint, remaining bigint)
LANGUAGE plpgsql AS $$
DECLARE
    lock lockkit_lock;
    now  bigint;
BEGIN
    PERFORM lockkit_begin(_patience);
    SELECT * INTO lock FROM lockkit_lock AS l
     WHERE l.namespace = _namespace AND l.name = _name FOR UPDATE;
    now := lockkit_now();
    IF (_observes OR lock.expires > now) AND lock.owner = coalesce(_owner, lock.owner) THEN
        PERFORM lockkit_let_go(lock, now);
        RETURN QUERY
        SELECT lock.owner, lock.label, lock.token, now - lock.since, lock.expires - now;
    END IF;
END
$$;

-- Removes rows that nobody has used for more than a day, some at a time, and says how many. No lease
-- is longer than a day, so a token that begins anew, from the clock, is still higher than the last
-- one given.
CREATE FUNCTION lockkit_sweep() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    idle_since bigint := lockkit_now() - 25::bigint * 3600 * 1000000;
    places     bigint;
    locks      bigint;
BEGIN
    DELETE FROM lockkit_place AS p WHERE p.ctid = ANY (ARRAY(
        SELECT o.ctid FROM lockkit_place AS o WHERE o.expires < idle_since
         LIMIT 1000 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS places = ROW_COUNT;
    DELETE FROM lockkit_lock AS l WHERE l.ctid = ANY (ARRAY(
        SELECT o.ctid FROM lockkit_lock AS o WHERE o.expires < idle_since AND o.token < idle_since
         LIMIT 1000 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS locks = ROW_COUNT;
    RETURN places + locks;
END
$$;

-- Who holds which lock by a session, as the functions below do it: an advisory lock of the server,
-- which alone decides. The row tells the rest, and outlives the holds for the token's sake.
CREATE TABLE lockkit_session (
    key       bigint PRIMARY KEY,       -- what is locked
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    owner     text COLLATE "C",         -- who took it last, 32 hexadecimal digits
    label     text,                     -- what the owner calls itself
    token     bigint NOT NULL,          -- the last one given
    since     bigint NOT NULL,          -- when it was granted
    pid       integer,                  -- the session that it was granted to
    awaited   bigint NOT NULL           -- until when somebody waits
) WITH (fillfactor = 50);

-- Who holds the lock, if anybody does. A session that took it otherwise has no owner.
CREATE FUNCTION lockkit_session_status(_key bigint)
RETURNS TABLE (
    pid integer, program text, namespace text, name text, owner text, label text, token bigint,
    age bigint
) LANGUAGE sql AS $$
    SELECT l.pid, a.application_name, s.namespace, s.name, s.owner, s.label, s.token,
           lockkit_now() - s.since
      FROM pg_locks AS l
      LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
      LEFT JOIN lockkit_session AS s
             ON s.key = _key AND s.pid = l.pid AND a.application_name = 'lockkit'
     WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND (l.classid::bigint << 32 | l.objid::bigint) = _key
     LIMIT 1
$$;

-- Takes the lock for the session, which must not have it: it would be let in. Refused, an owner that
-- waits leaves its mark, and had better ask again after it is there: the holder may not have seen it.
CREATE FUNCTION lockkit_session_take(
    _key bigint, _namespace text, _name text, _owner text, _label text, _ttl bigint, _waits boolean,
    OUT is_granted boolean, OUT last_token bigint, OUT ask_again boolean
) LANGUAGE plpgsql AS $$
DECLARE
    now bigint;
BEGIN
    is_granted := pg_try_advisory_lock(_key);
    ask_again := false;
    now := lockkit_now();
    IF is_granted THEN
        INSERT INTO lockkit_session AS s
            (key, namespace, name, owner, label, token, since, pid, awaited)
        VALUES (_key, _namespace, _name, _owner, _label, now, now, pg_backend_pid(), 0)
        ON CONFLICT (key) DO UPDATE
           SET namespace = _namespace, name = _name, owner = _owner, label = _label,
               token = greatest(s.token + 1, lockkit_now()), since = lockkit_now(),
               pid = pg_backend_pid()
        RETURNING s.token INTO last_token;
    ELSIF _waits THEN
        INSERT INTO lockkit_session AS s (key, namespace, name, token, since, awaited)
        VALUES (_key, _namespace, _name, 0, 0, now + _ttl)
        ON CONFLICT (key) DO UPDATE SET awaited = now + _ttl WHERE s.awaited < now + _ttl / 2;
        ask_again := FOUND;
    END IF;
END
$$;

-- Unlocks; whether the session had it. The mark is read afterwards: whoever leaves one later finds
-- the lock free.
CREATE FUNCTION lockkit_session_release(_key bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    was_held boolean := pg_advisory_unlock(_key);
    lock     lockkit_session;
BEGIN
    SELECT * INTO lock FROM lockkit_session AS s WHERE s.key = _key;
    IF was_held AND lock.awaited > lockkit_now() THEN
        PERFORM pg_notify('lockkit', concat_ws(E'\n', lock.namespace, lock.name, 'released'));
    END IF;
    RETURN was_held;
END
$$;

-- Ends the session that holds the lock, if it is that of `_owner` or `_owner` is null, and if the
-- session holds nothing else; `others` is what else it holds, beside the two integers that are its
-- mark. The hold is returned as it was.
CREATE FUNCTION lockkit_session_break(_key bigint, _owner text, _patience bigint)
RETURNS TABLE (
    pid integer, program text, namespace text, name text, owner text, label text, token bigint,
    age bigint, others text, is_over boolean
) LANGUAGE plpgsql AS $$
DECLARE
    mark     lockkit_session;
    role_set text := current_setting('role');
BEGIN
    SELECT * INTO pid, program, namespace, name, owner, label, token, age
      FROM lockkit_session_status(_key);
    IF pid IS NULL OR owner <> _owner OR (owner IS NULL AND _owner IS NOT NULL) THEN
        RETURN;
    END IF;
    SELECT string_agg(coalesce(s.name, o.key::text), ', ' ORDER BY s.name) INTO others
      FROM (SELECT l.classid::bigint << 32 | l.objid::bigint AS key
              FROM pg_locks AS l
             WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
               AND l.pid = lockkit_session_break.pid) AS o
      LEFT JOIN lockkit_session AS s ON s.key = o.key
     WHERE o.key <> _key;
    is_over := false;
    IF owner IS NOT NULL AND others IS NULL THEN
        BEGIN
            is_over := pg_terminate_backend(pid, _patience);
        EXCEPTION WHEN insufficient_privilege THEN
            -- The user who has logged in may end sessions of its own, even if the role that is set
            -- for it may not.
            PERFORM set_config('role', 'none', true);
            is_over := pg_terminate_backend(pid, _patience);
            PERFORM set_config('role', role_set, true);
        END;
        SELECT * INTO mark FROM lockkit_session AS s WHERE s.key = _key;
        IF is_over AND mark.awaited > lockkit_now() THEN
            PERFORM pg_notify('lockkit', concat_ws(E'\n', mark.namespace, mark.name, 'released'));
        END IF;
    END IF;
    RETURN NEXT;
END
$$;

-- Removes rows of locks that nobody has used for more than a day, some at a time, and says how
-- many.
CREATE FUNCTION lockkit_session_sweep() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    idle_since bigint := lockkit_now() - 25::bigint * 3600 * 1000000;
    locks      bigint;
BEGIN
    DELETE FROM lockkit_session AS s WHERE s.ctid = ANY (ARRAY(
        SELECT o.ctid FROM lockkit_session AS o
         WHERE greatest(o.token, o.since, o.awaited) < idle_since
           AND NOT EXISTS (
               SELECT FROM pg_locks AS l
                WHERE l.locktype = 'advisory'
                  AND (l.classid::bigint << 32 | l.objid::bigint) = o.key)
         LIMIT 1000 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS locks = ROW_COUNT;
    RETURN locks;
END
$$;

INSERT INTO lockkit_layout (version) VALUES (1);
