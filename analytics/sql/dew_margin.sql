-- How far each loop's supply is above the dew point of the air: below 0 water condenses on pipes and plates.
-- A unit with air probes of its own is judged by its wettest one, any other by the wettest of the hall. Temperature and
-- humidity count together where one probe (equipment, component) says both; else what a device gives as dew point.
-- Dew point: Magnus, a = 17.62, b = 243.12.
-- grain: one row per equipment, loop and minute of ts of the newest hour, where the supply was measured
-- units: degrees Celsius
-- inputs: recent.coolant_readings
WITH readings AS (
    SELECT equipment, component, loop, date_trunc('minute', ts) AS minute, point, value
    FROM recent.coolant_readings
    WHERE role = 'measured' AND quality = 'good'
        AND point IN ('supply_temperature', 'air_temperature', 'air_humidity', 'dew_point')
),
probes AS (
    SELECT
        equipment,
        component,
        minute,
        avg(value) FILTER (point = 'air_temperature') AS air_celsius,
        avg(value) FILTER (point = 'air_humidity' AND value > 0) AS humidity_percent,
        avg(value) FILTER (point = 'dew_point') AS read_celsius
    FROM readings
    WHERE point <> 'supply_temperature'
    GROUP BY ALL
),
shares AS (
    SELECT *, ln(humidity_percent / 100) + 17.62 * air_celsius / (243.12 + air_celsius) AS share FROM probes
),
air AS (
    SELECT
        equipment,
        minute,
        coalesce(max(243.12 * share / (17.62 - share)), max(read_celsius)) AS dew_point_celsius
    FROM shares
    GROUP BY ALL
),
wettest AS (
    SELECT minute, max(dew_point_celsius) AS dew_point_celsius FROM air GROUP BY ALL
),
supplies AS (
    SELECT equipment, loop, minute, min(value) AS supply_celsius
    FROM readings
    WHERE point = 'supply_temperature' AND loop IS NOT NULL
    GROUP BY ALL
)
SELECT
    s.equipment,
    s.loop,
    s.minute,
    s.supply_celsius,  -- the coldest of the minute
    coalesce(a.dew_point_celsius, w.dew_point_celsius) AS dew_point_celsius,
    s.supply_celsius - coalesce(a.dew_point_celsius, w.dew_point_celsius) AS dew_margin_celsius,
    a.dew_point_celsius IS NOT NULL AS is_own_air
FROM supplies s
LEFT JOIN air a ON a.equipment = s.equipment AND a.minute = s.minute
LEFT JOIN wettest w ON w.minute = s.minute
