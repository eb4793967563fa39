//! The tables of jobs that many hosts work on, and their versions.

/// What leads from each version to the next. Only ever added to.
pub(super) const MIGRATIONS: [&str; 2] = [V1, V2];

/// A job without a name is being removed. `loaded` counts the lines that are in blocks; the input has no more of them once the
/// job is `complete`. A block is known by its first line; `lost` counts workers whose lease ran out while it was theirs. `ok` and
/// `failed` count its results, in the transaction that keeps them.
const V1: &str = "
    CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql STABLE AS
        'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint';
    CREATE TABLE job (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text UNIQUE,
        settings text NOT NULL,
        created_ms bigint NOT NULL,
        loaded bigint NOT NULL DEFAULT 0,
        complete boolean NOT NULL DEFAULT false
    );
    CREATE TABLE worker (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        job bigint NOT NULL REFERENCES job(id) ON DELETE CASCADE,
        name text NOT NULL,
        since_ms bigint NOT NULL,
        lease_ms bigint NOT NULL,
        lease_until_ms bigint NOT NULL
    );
    CREATE INDEX worker_job ON worker(job);
    CREATE TABLE block (
        job bigint NOT NULL REFERENCES job(id),
        first bigint NOT NULL,
        lines bigint NOT NULL,
        body bytea NOT NULL,
        worker bigint,
        batch bigint,
        fence bigint NOT NULL DEFAULT 0,
        lost bigint NOT NULL DEFAULT 0,
        ok bigint NOT NULL DEFAULT 0,
        failed bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (job, first),
        CONSTRAINT is_counted CHECK (ok >= 0 AND failed >= 0 AND ok + failed <= lines)
    );
    CREATE INDEX block_free ON block(job, first) WHERE worker IS NULL AND ok + failed < lines;
    CREATE INDEX block_open ON block(job, first) WHERE ok + failed < lines;
    CREATE INDEX block_worker ON block(worker) WHERE worker IS NOT NULL;
    CREATE TABLE result (
        job bigint NOT NULL,
        line bigint NOT NULL,
        ok boolean NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (job, line)
    );
";

/// `speaks_since_ms` is when a worker's words began that had no long gap since. A line that is `leaving` is about to be sent, or
/// was, under the claim of that fence, and must not be sent twice; one that is `again` was sent though a lost worker may have
/// sent it.
const V2: &str = "
    ALTER TABLE worker ADD COLUMN speaks_since_ms bigint NOT NULL DEFAULT 0;
    CREATE TABLE leaving (
        job bigint NOT NULL,
        line bigint NOT NULL,
        fence bigint NOT NULL,
        PRIMARY KEY (job, line)
    );
    CREATE TABLE again (
        job bigint NOT NULL,
        line bigint NOT NULL,
        PRIMARY KEY (job, line)
    );
";
