-- Heat that each coolant loop carries away, beside the power that becomes it, minute by minute of the newest hour.
-- Devices seldom say what coolant is in them, and the coolant alone moves the heat by 3.5 %: there is one row per
-- coolant. `is_stated` marks the one that the configuration names.
-- Heat = flow x density at supply x specific heat at the mean x (return - supply); polynomials of the table in the
-- Airedale DeltaChill manual, page 53, 0 to 45 degrees.
-- grain: one row per equipment, loop, minute of ts and coolant, where flow and both temperatures were measured
-- units: degrees Celsius, litres per minute, kilowatts; balance_ratio: heat over power. The power is that of the rack
--        itself; for a coolant unit, of all racks that the inventory puts on it. Not all of it goes into the liquid
-- inputs: recent.coolant_readings, recent.power_readings, recent.coolant_loops, place
WITH coolants (coolant, heat_0, heat_1, heat_2, density_0, density_1, density_2) AS (
    VALUES
        ('water', 4.2085, -0.001821, 0.0000273, 999.92, 0.01408, -0.005167),
        ('pg20', 3.9273, 0.002255, 0.0, 1025.81, -0.2881, -0.002576),
        ('pg25', 3.861, 0.00248, 0.0, 1031.0, -0.316, -0.00256),
        ('pg30', 3.792, 0.0028, 0.0, 1036.23, -0.3403, -0.002636)
),
loops AS (
    SELECT
        equipment,
        loop,
        date_trunc('minute', ts) AS minute,
        avg(value) FILTER (point = 'supply_temperature') AS supply_celsius,
        avg(value) FILTER (point = 'return_temperature') AS return_celsius,
        avg(value) FILTER (point = 'flow') AS flow_liters_per_minute,
        avg(value) FILTER (point = 'heat_removed') AS heat_reported_kilowatts
    FROM recent.coolant_readings
    WHERE role = 'measured' AND quality = 'good' AND loop IS NOT NULL
        AND point IN ('supply_temperature', 'return_temperature', 'flow', 'heat_removed')
    GROUP BY ALL
),
-- A unit may have several meters: each counts once.
meters AS (
    SELECT equipment, component, date_trunc('minute', ts) AS minute, avg(power_watts) / 1000 AS kilowatts
    FROM recent.power_readings
    WHERE quality = 'good'
    GROUP BY ALL
),
drawn AS (
    SELECT equipment, minute, sum(kilowatts) AS kilowatts FROM meters GROUP BY ALL
),
carried AS (
    SELECT p.cdu AS equipment, d.minute, sum(d.kilowatts) AS kilowatts
    FROM drawn d JOIN place p ON p.asset = d.equipment AND p.kind = 'rack'
    WHERE p.cdu IS NOT NULL
    GROUP BY ALL
),
stated AS (
    SELECT equipment, loop, arg_max(coolant, ts) AS coolant FROM recent.coolant_loops GROUP BY ALL
),
heats AS (
    SELECT
        l.*,
        c.coolant,
        flow_liters_per_minute / 60000
        * (density_0 + density_1 * supply_celsius + density_2 * supply_celsius ** 2)
        * (
            heat_0 + heat_1 * (supply_celsius + return_celsius) / 2
            + heat_2 * ((supply_celsius + return_celsius) / 2) ** 2
        )
        * (return_celsius - supply_celsius) AS heat_kilowatts
    FROM loops l CROSS JOIN coolants c
)
SELECT
    h.equipment,
    h.loop,
    h.minute,
    h.coolant,
    coalesce(s.coolant = h.coolant, false) AS is_stated,
    h.supply_celsius,
    h.return_celsius,
    h.flow_liters_per_minute,
    h.heat_kilowatts,
    h.heat_reported_kilowatts,  -- what the unit itself says
    CASE WHEN h.loop IN ('rack', 'coldplate') THEN d.kilowatts ELSE c.kilowatts END AS power_kilowatts,
    h.heat_kilowatts / nullif(CASE WHEN h.loop IN ('rack', 'coldplate') THEN d.kilowatts ELSE c.kilowatts END, 0)
        AS balance_ratio
FROM heats h
LEFT JOIN drawn d ON d.equipment = h.equipment AND d.minute = h.minute
LEFT JOIN carried c ON c.equipment = h.equipment AND c.minute = h.minute
LEFT JOIN stated s ON s.equipment = h.equipment AND s.loop = h.loop
WHERE h.heat_kilowatts IS NOT NULL
