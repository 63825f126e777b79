-- What came and what did not, of the streams that sources send at an interval, for the newest hour of each stream.
-- A minute in which nothing came is there, with 0 received: missing is not zero rows.
-- grain: one row per stream, source, epoch and minute of _received, from the source's first to the stream's newest
-- units: events; expected = what the stream's interval makes of a minute; missing = holes in the epoch's sequence,
--        counted in the minute in which a later event came
-- inputs: recent.origins, lake_tables
WITH came AS (
    SELECT
        o.stream, o._source, o._epoch, date_trunc('minute', o._received) AS minute,
        count(DISTINCT o._seq) AS received, count(*) AS rows, min(o._seq) AS lowest, max(o._seq) AS highest
    FROM recent.origins o JOIN lake_tables t
        ON t.stream = o.stream AND o._received > t.newest_received - INTERVAL 1 HOUR
    GROUP BY ALL
),
-- What one epoch lacks between its first event of the hour and its last.
holes AS (
    SELECT
        stream, _source, _epoch, minute, received, rows,
        highest - coalesce(
            lag(highest) OVER (PARTITION BY stream, _source, _epoch ORDER BY minute), lowest - 1
        ) - received AS missing
    FROM came
),
-- From an epoch's first minute to the next epoch's, or to the stream's newest.
epochs AS (
    SELECT stream, _source, _epoch, min(minute) AS first, max(minute) AS last FROM came GROUP BY ALL
),
spans AS (
    SELECT
        e.stream, e._source, e._epoch, e.first,
        greatest(e.last, coalesce(
            lead(e.first) OVER (PARTITION BY e.stream, e._source ORDER BY e.first) - INTERVAL 1 MINUTE,
            date_trunc('minute', t.newest_received)
        )) AS last
    FROM epochs e JOIN lake_tables t ON t.stream = e.stream
),
minutes AS (
    SELECT stream, _source, _epoch, unnest(generate_series(first, last, INTERVAL 1 MINUTE)) AS minute FROM spans
)
SELECT
    m.stream,
    m._source AS source,
    m._epoch AS epoch,
    m.minute,
    (60 / t.interval_seconds)::DOUBLE AS expected,
    coalesce(h.received, 0)::BIGINT AS received,
    coalesce(h.missing, 0)::BIGINT AS missing,
    coalesce(h.rows, 0)::BIGINT AS rows
FROM minutes m
JOIN lake_tables t ON t.stream = m.stream
LEFT JOIN holes h ON h.stream = m.stream AND h._source = m._source AND h._epoch = m._epoch AND h.minute = m.minute
