-- The fleet as it is: every GPU that the inventory expects or that reported, its newest sample and its alerts.
-- A sample counts as newest when it was received in the last 10 minutes of what the lake holds; a GPU without one is
-- there with nulls, since missing is not zero.
-- grain: one row per GPU
-- units: as in gpu_samples; age_seconds: since the newest sample, by this machine's clock
-- inputs: recent.gpu_samples, lake_tables, alerts, place
WITH newest AS (
    SELECT gpu_uuid, max(_received) AS _received
    FROM recent.gpu_samples
    WHERE _received > (
        SELECT newest_received FROM lake_tables WHERE stream = 'gpu_samples'
    ) - INTERVAL 10 MINUTE
    GROUP BY gpu_uuid
),
samples AS (
    SELECT s.*
    FROM recent.gpu_samples s JOIN newest USING (gpu_uuid, _received)
    WHERE s._received >= (SELECT min(_received) FROM newest)
    QUALIFY row_number() OVER (PARTITION BY gpu_uuid ORDER BY ts DESC, _offset DESC) = 1
),
expected AS (
    SELECT asset AS gpu_uuid, hall, "row", rack, cdu, host, model, position FROM place WHERE kind = 'gpu'
),
transitions AS (
    SELECT entity, transition
    FROM alerts
    -- A new chain begins again at 0 and comes after the old one.
    QUALIFY row_number() OVER (PARTITION BY fingerprint ORDER BY _received DESC, chain_index DESC) = 1
),
firing AS (
    SELECT entity, count(*) AS alerts FROM transitions WHERE transition = 'firing' GROUP BY entity
)
SELECT
    coalesce(e.gpu_uuid, s.gpu_uuid) AS gpu_uuid,
    coalesce(s.host, e.host) AS host,
    coalesce(s.gpu_index, e.position) AS gpu_index,
    e.hall,
    e."row",
    e.rack,
    e.cdu,
    coalesce(s.model, e.model) AS model,
    s.ts,
    epoch(now()::TIMESTAMP - s.ts) AS age_seconds,
    s.temperature_celsius,
    s.memory_temperature_celsius,
    s.temperature_margin_celsius,
    s.power_watts,
    s.sm_clock_mhz,
    s.clock_event_reasons,
    s.utilization_percent,
    s.tensor_active_ratio,
    s.framebuffer_used_mib,
    s.last_xid,
    s.ecc_double_bit_volatile,
    s.row_remap_failed,
    s.namespace,
    s.pod,
    s.hpc_job,
    (coalesce(g.alerts, 0) + coalesce(h.alerts, 0))::BIGINT AS alerts_firing,  -- on the GPU and on its host
    e.gpu_uuid IS NOT NULL AS in_inventory
FROM expected e
FULL JOIN samples s ON s.gpu_uuid = e.gpu_uuid
LEFT JOIN firing g ON g.entity = coalesce(e.gpu_uuid, s.gpu_uuid)
LEFT JOIN firing h ON h.entity = coalesce(s.host, e.host)
