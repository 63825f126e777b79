-- What latencies that were kept as histograms answer (docs/histograms.md). `idx`, `cnt` and `schema` are the columns
-- of that name of one histogram, as rtt_idx, rtt_cnt, rtt_schema. Values are nanoseconds.

-- The value that stands for a bucket: as far from its lower as from its upper bound, in proportion.
CREATE MACRO histogram_middle(index, schema) AS
    2 * 2.0 ** (index / 2.0 ** schema) / (2.0 ** (1 / 2.0 ** schema) + 1);

-- The same buckets by the indexes of a coarser schema; several of them may become one, whose counts add up.
CREATE MACRO histogram_downscaled(idx, schema, coarser) AS
    list_transform(idx, lambda i: ceil(i / 2.0 ** (schema - coarser))::SMALLINT);

-- The first bucket, of ascending ones, that a share `ratio` of what is counted does not exceed.
CREATE MACRO histogram_bucket(buckets, total, ratio) AS
    list_reduce(
        buckets,
        lambda seen, b: if(seen[2] >= greatest(1, ceil(ratio * total)), seen, row(b[1], seen[2] + b[2])),
        row(NULL::INTEGER, 0::BIGINT)
    )[1];

-- Aggregate: the value that a share `ratio` of all values of the rows together does not exceed.
CREATE MACRO histogram_percentile(idx, cnt, schema, ratio) AS
    histogram_middle(
        histogram_bucket(
            list_sort(
                list_transform(
                    list_zip(
                        flatten(list(idx)), flatten(list(cnt)), flatten(list(list_transform(idx, lambda i: schema)))
                    ),
                    lambda b: row(ceil(b[1] / 2.0 ** (b[3] - min(schema)))::INTEGER, b[2]::BIGINT)
                )
            ),
            sum(list_sum(cnt)),
            ratio
        ),
        min(schema)
    );

-- Aggregate: how many values of the rows are in buckets that end at or below `nanoseconds`.
CREATE MACRO histogram_count_below(idx, cnt, schema, nanoseconds) AS
    coalesce(
        sum(
            list_sum(
                list_transform(
                    list_zip(idx, cnt), lambda b: if(2.0 ** (b[1] / 2.0 ** schema) <= nanoseconds, b[2], 0)
                )
            )
        ),
        0
    )::BIGINT;

-- Table: one histogram per value of `by_what`, of a view or a WITH query named by a text, with its percentiles.
-- For many rows: it adds buckets up before it sorts them.
CREATE MACRO histogram_merged(source, by_what, idx, cnt, schema) AS TABLE
    WITH parts AS (
        SELECT by_what AS k, schema AS s, idx AS i, cnt AS n FROM query_table(source) WHERE idx IS NOT NULL
    ),
    coarsest AS (SELECT k, min(s) AS least FROM parts GROUP BY k),
    buckets AS (
        SELECT c.k, least, unnest(histogram_downscaled(i, s, least)) AS i, unnest(n) AS n
        FROM parts AS p JOIN coarsest AS c ON p.k IS NOT DISTINCT FROM c.k
    ),
    added AS (SELECT k, least, i, sum(n)::BIGINT AS n FROM buckets GROUP BY ALL),
    merged AS (
        SELECT k, least, sum(n)::BIGINT AS total, list(i ORDER BY i) AS i, list(n ORDER BY i) AS n
        FROM added GROUP BY ALL
    )
    SELECT
        k AS grouping,
        total AS count,
        histogram_middle(histogram_bucket(list_zip(i, n), total, 0.5), least) AS p50_ns,
        histogram_middle(histogram_bucket(list_zip(i, n), total, 0.99), least) AS p99_ns,
        histogram_middle(histogram_bucket(list_zip(i, n), total, 0.999), least) AS p999_ns,
        least AS schema,
        i AS idx,
        n AS cnt
    FROM merged;
