-- Where everything stands: the hall, row, rack, CDU, loop, leaf, rail and host of every asset that is expected to be
-- there, by each name that it is called by. A link stands where its lower end does: a NIC's cable at the NIC.
-- grain: one row per name of an active asset of the newest inventory; `entity = asset` picks one row per asset
-- units: none
-- inputs: inventory
WITH RECURSIVE latest AS MATERIALIZED (
    SELECT * FROM inventory
    QUALIFY row_number() OVER (PARTITION BY asset ORDER BY ts DESC, _received DESC, _offset DESC) = 1
        AND state = 'active'
),
steps AS MATERIALIZED (
    SELECT
        asset,
        kind,
        CASE kind WHEN 'link' THEN child ELSE parent END AS above,
        CASE kind WHEN 'cdu' THEN asset ELSE cdu END AS cdu,
        -- A CDU that names no loop is cooled by none that is known, least of all by the one it drives.
        CASE kind WHEN 'loop' THEN asset WHEN 'cdu' THEN coalesce(loop, '') ELSE loop END AS loop,
        CASE kind WHEN 'leaf' THEN asset ELSE leaf END AS leaf,
        rail
    FROM latest
),
-- A chain of parents that is longer is a circle.
chain AS (
    SELECT asset, 0 AS height, s.* EXCLUDE (asset), asset AS ancestor FROM steps s
    UNION ALL
    SELECT c.asset, c.height + 1, s.* EXCLUDE (asset), s.asset
    FROM chain c JOIN steps s ON s.asset = c.above
    WHERE c.height < 12
),
places AS (
    SELECT
        asset,
        arg_min(ancestor, height) FILTER (kind = 'hall') AS hall,
        arg_min(ancestor, height) FILTER (kind = 'row') AS "row",
        arg_min(ancestor, height) FILTER (kind = 'rack') AS rack,
        arg_min(cdu, height) AS cdu,
        nullif(arg_min(loop, height), '') AS loop,
        arg_min(ancestor, height) FILTER (kind = 'host') AS host,
        arg_min(leaf, height) AS leaf,
        arg_min(rail, height) AS rail
    FROM chain
    GROUP BY asset
),
names AS (
    SELECT asset AS entity, asset FROM latest
    UNION ALL
    SELECT unnest([guid, guid || '/' || coalesce(port, 1), parent || '/' || port_name]), asset
    FROM (
        SELECT asset, guid, port, parent, CASE WHEN coalesce(port, 1) = 1 THEN split_part(asset, '/', 2) || '/1' END AS port_name
        FROM latest WHERE kind = 'nic'
    )
    UNION ALL
    SELECT unnest([parent || '/' || parent_port, child || '/' || child_port]), unnest([parent, child])
    FROM latest WHERE kind = 'link'
)
SELECT
    n.entity,  -- a GPU's UUID, host/nic, host/nic/port, a port GUID alone or with its port, switch/port, else the name
    p.asset,   -- the asset that is meant
    kind,      -- what it is: hall, row, rack, cdu, loop, host, gpu, nic, leaf, spine, link, detector and others
    p.hall,
    p."row",
    p.rack,
    p.cdu,     -- the coolant distribution unit of its rack or loop
    p.host,    -- the host it is in, or is
    model,     -- product name
    position,  -- index on its host, for a GPU; its number, for a rail
    p.loop,    -- the coolant loop that cools it, or that it is
    p.leaf,    -- the leaf switch that it is connected to, or is
    p.rail     -- its rail, for a NIC, a leaf or a link
FROM names n
JOIN places p USING (asset)
JOIN latest USING (asset)
WHERE n.entity IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY n.entity ORDER BY n.entity <> p.asset, p.asset) = 1
