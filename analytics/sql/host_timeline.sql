-- Each host on one timeline: the heat of its GPUs, the coolant of its loop, the ports of its fabric, its proof.
-- A span without rows of a family has nulls there, for missing is not zero. Coolant and proof are the newest ones at
-- the end of the span, and no older than a minute and an hour.
-- grain: one row per host and 10 seconds of ts that any of its GPUs or ports was read in, in the newest hour
-- units: degrees Celsius, watts, litres per minute, errors since the host's newest reading before; trust = verdict and
--        policy of its newest evidence
-- inputs: recent.gpu_samples, recent.fabric_ports, recent.coolant_loops, recent.attestation_results, lake_tables, place
WITH since AS (
    SELECT max(newest_received) - INTERVAL 1 HOUR AS received FROM lake_tables
    WHERE stream IN ('gpu_samples', 'fabric_ports', 'coolant_loops', 'attestation_results')
),
gpus AS (
    SELECT
        host,
        time_bucket(INTERVAL 10 SECOND, ts) AS span,
        max(temperature_celsius) AS hottest_celsius,
        min(temperature_margin_celsius) AS least_margin_celsius,
        sum(power_watts) / count(DISTINCT ts) AS gpu_watts
    FROM recent.gpu_samples
    WHERE _received > (SELECT received FROM since)
    GROUP BY ALL
),
port_counts AS (
    SELECT
        host,
        port_id,
        time_bucket(INTERVAL 10 SECOND, ts) AS span,
        arg_max(in_use AND link_state NOT IN ('active', 'active_defer'), ts) AS is_down,
        max(coalesce(symbol_error, 0) + coalesce(link_error_recovery, 0) + coalesce(link_downed, 0)
            + coalesce(port_rcv_errors, 0) + coalesce(retrans_packets, 0)) AS errors
    FROM recent.fabric_ports
    WHERE _received > (SELECT received FROM since)
    GROUP BY ALL
),
port_changes AS (
    SELECT
        host,
        span,
        is_down,
        errors - lag(errors) OVER (PARTITION BY port_id ORDER BY span) AS more
    FROM port_counts
),
ports AS (
    SELECT
        host,
        span,
        count(*) FILTER (is_down) AS ports_down,
        sum(greatest(more, 0)) AS port_errors  -- a counter that was set back counts nothing
    FROM port_changes
    GROUP BY ALL
),
hosts AS (
    SELECT
        coalesce(g.host, p.host) AS host,
        coalesce(g.span, p.span) AS span,
        g.hottest_celsius,
        g.least_margin_celsius,
        g.gpu_watts,
        p.ports_down,
        p.port_errors
    FROM gpus g FULL JOIN ports p ON p.host = g.host AND p.span = g.span
),
placed AS (
    SELECT h.*, p.rack, p.cdu FROM hosts h LEFT JOIN place p ON p.entity = h.host
),
loops AS (
    SELECT equipment, ts, flow_liters_per_minute, supply_celsius, dew_margin_celsius
    FROM recent.coolant_loops
    WHERE loop = 'TCS' AND _received > (SELECT received FROM since)
),
proofs AS (
    SELECT host, ts, verdict || ', policy ' || policy AS trust
    FROM recent.attestation_results
    WHERE _received > (SELECT received FROM since)
)
SELECT
    h.span AS ts,              -- the beginning of the span
    h.host,
    h.rack,
    h.cdu,                     -- the coolant unit of its rack
    h.hottest_celsius,
    h.least_margin_celsius,
    h.gpu_watts,
    CASE WHEN l.ts > h.span - INTERVAL 1 MINUTE THEN l.flow_liters_per_minute END AS flow_liters_per_minute,
    CASE WHEN l.ts > h.span - INTERVAL 1 MINUTE THEN l.supply_celsius END AS supply_celsius,
    CASE WHEN l.ts > h.span - INTERVAL 1 MINUTE THEN l.dew_margin_celsius END AS dew_margin_celsius,
    h.ports_down,
    h.port_errors,
    CASE WHEN e.ts > h.span - INTERVAL 1 HOUR THEN e.trust END AS trust
FROM placed h
ASOF LEFT JOIN loops l ON l.equipment = h.cdu AND l.ts < h.span + INTERVAL 10 SECOND
ASOF LEFT JOIN proofs e ON e.host = h.host AND e.ts < h.span + INTERVAL 10 SECOND
