-- The fleet as it is: every GPU that the inventory expects or that reported, its newest sample and its alerts.
-- A sample counts as newest when it is of the last 10 minutes of what the lake holds; a GPU without one is there
-- with nulls, since missing is not zero.
-- grain: one row per GPU
-- units: as in gpu_samples; age_seconds = since the newest sample, by this machine's clock
-- inputs: gpu_samples, alerts, place
WITH newest AS (
    SELECT *
    FROM gpu_samples
    WHERE ts > (SELECT max(ts) FROM gpu_samples) - INTERVAL 10 MINUTE
    QUALIFY row_number() OVER (PARTITION BY gpu_uuid ORDER BY ts DESC, _offset DESC) = 1
),
expected AS (
    SELECT asset AS gpu_uuid, hall, "row", rack, cdu, host, model, position FROM place WHERE kind = 'gpu'
),
firing AS (
    SELECT entity, count(*) AS alerts
    FROM (
        SELECT entity, transition
        FROM alerts
        QUALIFY row_number() OVER (PARTITION BY fingerprint ORDER BY _epoch = (
            SELECT arg_max(_epoch, _received) FROM alerts
        ) DESC, chain_index DESC) = 1
    )
    WHERE transition = 'firing'
    GROUP BY entity
)
SELECT
    coalesce(e.gpu_uuid, n.gpu_uuid) AS gpu_uuid,
    coalesce(n.host, e.host) AS host,
    coalesce(n.gpu_index, e.position) AS gpu_index,
    e.hall, e."row", e.rack, e.cdu,
    coalesce(n.model, e.model) AS model,
    n.ts,
    epoch(now()::TIMESTAMP - n.ts) AS age_seconds,
    n.temperature_celsius,
    n.memory_temperature_celsius,
    n.temperature_margin_celsius,
    n.power_watts,
    n.sm_clock_mhz,
    n.clock_event_reasons,
    n.utilization_percent,
    n.tensor_active_ratio,
    n.framebuffer_used_mib,
    n.last_xid,
    n.ecc_double_bit_volatile,
    n.row_remap_failed,
    n.namespace, n.pod, n.hpc_job,
    coalesce(f.alerts, 0) + coalesce(h.alerts, 0) AS alerts_firing,
    e.gpu_uuid IS NOT NULL AS in_inventory
FROM expected e
FULL JOIN newest n ON n.gpu_uuid = e.gpu_uuid
LEFT JOIN firing f ON f.entity = coalesce(e.gpu_uuid, n.gpu_uuid)
LEFT JOIN firing h ON h.entity = coalesce(n.host, e.host)
