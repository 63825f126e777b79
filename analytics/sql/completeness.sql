-- What came and what did not, of the streams that sources send at an interval, for the last day of each stream.
-- A minute without events is there, with 0 received: missing is not zero rows.
-- grain: one row per stream, source and minute (of _received), from the source's first to the stream's newest minute
-- units: events; expected = what the stream's interval makes of a minute; lost = holes in the source's sequence,
--        counted in the minute in which a later event came
-- inputs: gpu_samples, gpu_instances, gpu_links, gpu_switches, collector_status
WITH intervals (stream, seconds) AS (
    VALUES ('gpu_samples', 1), ('gpu_instances', 1), ('gpu_links', 60), ('gpu_switches', 10), ('collector_status', 10)
),
origins AS (
    SELECT 'gpu_samples' AS stream, _source, _epoch, _seq, _received FROM gpu_samples
    UNION ALL SELECT 'gpu_instances', _source, _epoch, _seq, _received FROM gpu_instances
    UNION ALL SELECT 'gpu_links', _source, _epoch, _seq, _received FROM gpu_links
    UNION ALL SELECT 'gpu_switches', _source, _epoch, _seq, _received FROM gpu_switches
    UNION ALL SELECT 'collector_status', _source, _epoch, _seq, _received FROM collector_status
),
recent AS (
    SELECT o.*, date_trunc('minute', o._received) AS minute
    FROM origins o JOIN (SELECT stream, max(_received) AS newest FROM origins GROUP BY stream) n
        ON n.stream = o.stream AND o._received > n.newest - INTERVAL 1 DAY
),
per_epoch AS (
    SELECT stream, _source, _epoch, minute,
        count(DISTINCT _seq) AS received, count(*) AS rows, min(_seq) AS lowest, max(_seq) AS highest
    FROM recent GROUP BY ALL
),
holes AS (
    SELECT stream, _source, minute, received, rows,
        highest - coalesce(
            lag(highest) OVER (PARTITION BY stream, _source, _epoch ORDER BY minute), lowest - 1
        ) - received AS lost
    FROM per_epoch
),
per_minute AS (
    SELECT stream, _source, minute, sum(received) AS received, sum(rows) AS rows, sum(lost) AS lost
    FROM holes GROUP BY ALL
),
spans AS (
    SELECT p.stream, p._source, min(p.minute) AS first, any_value(s.last) AS last
    FROM per_minute p JOIN (SELECT stream, max(minute) AS last FROM per_minute GROUP BY stream) s USING (stream)
    GROUP BY ALL
),
minutes AS (
    SELECT stream, _source, unnest(generate_series(first, last, INTERVAL 1 MINUTE)) AS minute FROM spans
)
SELECT
    m.stream,
    m._source AS source,
    m.minute,
    60 // i.seconds AS expected,
    coalesce(p.received, 0)::BIGINT AS received,
    coalesce(p.lost, 0)::BIGINT AS lost,
    coalesce(p.rows, 0)::BIGINT AS rows
FROM minutes m
JOIN intervals i USING (stream)
LEFT JOIN per_minute p ON p.stream = m.stream AND p._source = m._source AND p.minute = m.minute
