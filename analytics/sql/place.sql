-- Where everything stands: the hall, row, rack, CDU and host of every asset that is expected to be there.
-- grain: one row per active asset of the newest inventory
-- units: none
-- inputs: inventory
WITH RECURSIVE latest AS (
    SELECT asset, kind, parent, cdu, model, position
    FROM inventory
    QUALIFY row_number() OVER (PARTITION BY asset ORDER BY ts DESC, _offset DESC) = 1 AND state = 'active'
),
chain AS (
    SELECT asset, kind, model, position, asset AS ancestor, kind AS ancestor_kind, parent, cdu AS ancestor_cdu
    FROM latest
    UNION ALL
    SELECT c.asset, c.kind, c.model, c.position, l.asset, l.kind, l.parent, l.cdu
    FROM chain c JOIN latest l ON l.asset = c.parent
)
SELECT
    asset,
    any_value(kind) AS kind,
    max(ancestor) FILTER (ancestor_kind = 'hall') AS hall,
    max(ancestor) FILTER (ancestor_kind = 'row') AS "row",
    max(ancestor) FILTER (ancestor_kind = 'rack') AS rack,
    coalesce(max(ancestor_cdu), max(ancestor) FILTER (ancestor_kind = 'cdu')) AS cdu,
    max(ancestor) FILTER (ancestor_kind = 'host') AS host,
    any_value(model) AS model,
    any_value(position) AS position
FROM chain
GROUP BY asset
