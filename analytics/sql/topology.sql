-- How everything is joined: what stands in what, what cools, drives, measures and watches what, and every cable.
-- grain: one row per relation of two active assets of the newest inventory
-- units: speed_gbps: gigabits per second that a link should have; width: its lanes
-- inputs: inventory
WITH latest AS MATERIALIZED (
    SELECT * FROM inventory
    QUALIFY row_number() OVER (PARTITION BY asset ORDER BY ts DESC, _received DESC, _offset DESC) = 1
        AND state = 'active'
),
relations AS (
    SELECT
        asset AS child,
        CASE
            WHEN kind = 'detector' THEN 'watches'
            WHEN kind = 'meter' THEN 'measures'
            WHEN kind IN ('loop', 'rail', 'trust_root') THEN 'belongs_to'
            ELSE 'stands_in'
        END AS relation,
        parent,
        NULL::VARCHAR AS link
    FROM latest WHERE kind <> 'link' AND parent IS NOT NULL
    UNION ALL
    -- A rack whose loop is known is cooled by its CDU through that loop.
    SELECT asset, 'cooled_by', coalesce(loop, cdu), NULL
    FROM latest WHERE kind IN ('rack', 'cdu') AND coalesce(loop, cdu) IS NOT NULL
    UNION ALL
    SELECT asset, 'fed_by', loop, NULL FROM latest WHERE kind = 'loop' AND loop IS NOT NULL
    UNION ALL
    SELECT asset, 'driven_by', cdu, NULL FROM latest WHERE kind = 'loop' AND loop IS NULL AND cdu IS NOT NULL
    UNION ALL
    SELECT asset, 'on_rail', 'rail-' || rail, NULL FROM latest WHERE kind IN ('nic', 'leaf') AND rail IS NOT NULL
    UNION ALL
    SELECT asset, 'trusts', unnest(string_split(trust_roots, ' ')), NULL FROM latest WHERE trust_roots IS NOT NULL
    UNION ALL
    SELECT child, 'connects', parent, asset FROM latest WHERE kind = 'link'
)
SELECT
    r.child,
    c.kind AS child_kind,
    r.relation,        -- stands_in, belongs_to, cooled_by, driven_by, fed_by, watches, measures, on_rail, trusts, connects
    r.parent,
    p.kind AS parent_kind,  -- null where the inventory no longer lists it
    r.link,            -- the cable, for connects
    l.child_port,
    l.parent_port,
    l.speed_gbps,
    l.width
FROM relations r
JOIN latest c ON c.asset = r.child
LEFT JOIN latest p ON p.asset = r.parent
LEFT JOIN latest l ON l.asset = r.link
