//! The tables of a store in Postgres, and their versions.

/// What leads from each version to the next. Only ever added to. `now_ms` is the one clock of all workers; it is declared
/// stable, so that an index may be searched by it.
pub(super) const MIGRATIONS: [&str; 12] = [V1, V2, V3, V4, V5, V6, V7, V8, V9, V10, V11, V12];

/// As in SQLite, but for the clock. Pages keep room (`fillfactor`), so that an update that touches no index stays on its
/// page; no index is on what every try changes, but for the due index.
const V1: &str = "
    CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql STABLE AS
        'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint';
    CREATE TABLE worker (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL,
        lease_ms bigint NOT NULL,
        lease_until_ms bigint NOT NULL
    );
    CREATE TABLE scope (
        name text PRIMARY KEY,
        until_ms bigint,
        reason text NOT NULL,
        since_ms bigint NOT NULL
    );
    CREATE TABLE lane (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        grp text NOT NULL,
        priority smallint NOT NULL,
        UNIQUE (grp, priority)
    );
    CREATE TABLE item (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key text NOT NULL UNIQUE,
        lane bigint NOT NULL REFERENCES lane(id),
        state smallint NOT NULL DEFAULT 0,
        not_before_ms bigint NOT NULL DEFAULT 0,
        delay_ms bigint NOT NULL DEFAULT 0,
        attempts bigint NOT NULL DEFAULT 0,
        deferrals bigint NOT NULL DEFAULT 0,
        abandoned bigint NOT NULL DEFAULT 0,
        forgiven_attempts bigint NOT NULL DEFAULT 0,
        forgiven_deferrals bigint NOT NULL DEFAULT 0,
        crashes bigint NOT NULL DEFAULT 0,
        fence bigint NOT NULL DEFAULT 0,
        worker bigint,
        batch bigint,
        created_ms bigint NOT NULL,
        first_ms bigint,
        ended_ms bigint,
        deadline_ms bigint,
        last_class text,
        last_status bigint,
        last_code text,
        last_words text,
        reason text
    ) WITH (fillfactor = 70);
    CREATE TABLE payload (item bigint PRIMARY KEY REFERENCES item(id), body text NOT NULL);
    CREATE TABLE event (
        item bigint NOT NULL REFERENCES item(id),
        n bigint NOT NULL,
        decided_ms bigint NOT NULL,
        send bigint NOT NULL,
        class text NOT NULL,
        status bigint,
        code text,
        words text NOT NULL,
        action text NOT NULL,
        reason text,
        judge text NOT NULL,
        not_before_ms bigint,
        waited_ms bigint,
        PRIMARY KEY (item, n)
    );
    CREATE INDEX item_due ON item(lane, not_before_ms, crashes, id) WHERE state = 0;
    CREATE INDEX item_worker ON item(worker) WHERE state = 1;
    CREATE INDEX item_next_run ON item(id) WHERE state = 6;
";

/// The latest time that a worker saw, by which a clock that was set back is noticed.
const V2: &str = "
    CREATE TABLE clock (last_ms bigint NOT NULL);
    INSERT INTO clock VALUES (now_ms());
";

/// The limiter states of accounts.
const V3: &str = "
    CREATE TABLE limiter (account text PRIMARY KEY, state text NOT NULL);
";

/// As in SQLite: a due time that is none is refused.
const V4: &str = "
    UPDATE item SET not_before_ms = 0 WHERE not_before_ms < 0;
    ALTER TABLE item ADD CONSTRAINT is_due_time CHECK (not_before_ms >= 0);
";

/// As in SQLite: the calls that must not be made twice.
const V5: &str = "
    ALTER TABLE item ADD COLUMN sent smallint NOT NULL DEFAULT 0;
    UPDATE item SET sent = 2 WHERE state = 1 OR (state = 0 AND crashes > 0);
";

/// As in SQLite: the keys of removed items.
const V6: &str = "
    CREATE TABLE pruned (key text PRIMARY KEY, state smallint NOT NULL, ended_ms bigint NOT NULL);
";

/// Which scopes have answered.
const V7: &str = "
    CREATE TABLE answers (scope text PRIMARY KEY, slowest_ms bigint NOT NULL, noted_ms bigint NOT NULL);
    CREATE INDEX answers_noted ON answers(noted_ms);
";

/// As in SQLite: when a person sent for an item last.
const V8: &str = "
    ALTER TABLE item ADD COLUMN sent_for_ms bigint;
";

/// Notes about scopes.
const V9: &str = "
    CREATE TABLE note (scope text PRIMARY KEY, body text NOT NULL, noted_ms bigint NOT NULL);
    CREATE INDEX note_noted ON note(noted_ms);
";

/// As in SQLite: when an item succeeded that a person sends for once more.
const V10: &str = "
    ALTER TABLE item ADD COLUMN delivered_ms bigint;
    ALTER TABLE event ADD COLUMN created_ms bigint;
";

/// As in SQLite: calls that only tested a failing server.
const V11: &str = "
    ALTER TABLE item ADD COLUMN tests bigint NOT NULL DEFAULT 0;
";

/// As in SQLite: a call of an item may have been done.
const V12: &str = "
    ALTER TABLE item ADD COLUMN in_doubt boolean NOT NULL DEFAULT false;
    UPDATE item SET in_doubt = true WHERE sent > 0;
";

/// Settings of every connection. A transaction takes each item by its key or by the due index, whatever statistics say. A worker
/// that froze or vanished within a transaction keeps its rows locked: the server ends it before the shortest usual lease does.
pub(super) const SESSION: &str = "
    SET idle_in_transaction_session_timeout = '5s';
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET jit = off; SET client_min_messages = warning;
";
