-- Announced work: where, when, and what it may do.
-- grain: one row per window, as it was announced last
-- units: none; state by this machine's clock
-- inputs: maintenance
WITH newest AS (
    SELECT * FROM maintenance
    QUALIFY rank() OVER (PARTITION BY window_id ORDER BY ts DESC, _received DESC, _offset DESC) = 1
)
SELECT
    window_id,
    CASE
        WHEN any_value("action") = 'ended' THEN 'ended'
        WHEN any_value(start_ts) > now()::TIMESTAMP THEN 'planned'
        WHEN any_value(end_ts) > now()::TIMESTAMP THEN 'open'
        ELSE 'over'
    END AS state,  -- planned, open, over (its time has passed), ended (by somebody, at end_ts)
    any_value(start_ts) AS start_ts,
    any_value(end_ts) AS end_ts,
    list(DISTINCT scope_kind || '=' || scope ORDER BY scope_kind || '=' || scope) AS scopes,
    list(DISTINCT effect ORDER BY effect) AS effects,
    any_value(reason) AS reason,
    any_value(announced_by) AS announced_by,
    any_value(ts) AS announced_ts
FROM newest
GROUP BY window_id
