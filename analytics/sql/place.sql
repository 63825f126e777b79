-- Where everything stands: the hall, row, rack, CDU and host of every asset that is expected to be there.
-- grain: one row per active asset of the newest inventory
-- units: none
-- inputs: inventory
WITH RECURSIVE latest AS (
    SELECT asset, kind, parent, cdu, model, position
    FROM inventory
    QUALIFY row_number() OVER (PARTITION BY asset ORDER BY ts DESC, _received DESC, _offset DESC) = 1
        AND state = 'active'
),
-- UNION, not UNION ALL: a circle of parents ends.
chain AS (
    SELECT asset, asset AS ancestor, kind AS ancestor_kind, parent, cdu AS ancestor_cdu
    FROM latest
    UNION
    SELECT c.asset, l.asset, l.kind, l.parent, l.cdu
    FROM chain c JOIN latest l ON l.asset = c.parent
),
places AS (
    SELECT
        asset,
        max(ancestor) FILTER (ancestor_kind = 'hall') AS hall,
        max(ancestor) FILTER (ancestor_kind = 'row') AS "row",
        max(ancestor) FILTER (ancestor_kind = 'rack') AS rack,
        coalesce(max(ancestor_cdu), max(ancestor) FILTER (ancestor_kind = 'cdu')) AS cdu,
        max(ancestor) FILTER (ancestor_kind = 'host') AS host
    FROM chain
    GROUP BY asset
)
SELECT
    asset,
    kind,      -- what it is: hall, row, rack, cdu, host, gpu, nic
    p.hall,
    p."row",
    p.rack,
    p.cdu,     -- the coolant distribution unit of its rack
    p.host,    -- the host it is in, or is
    model,     -- product name
    position   -- index on its host, for a GPU
FROM places p JOIN latest USING (asset)
