"""The columns that every row of a family carries first."""

from contract.stream import flag, text, time

TIME = time("ts", "When it was so, by the source's clock.", required=True)
SYNTHETIC = flag(
    "synthetic", "Drawn by the twin, not measured; one hall is all the one or all the other.", required=True
)

HOST = (TIME, text("host", "The host it was read on.", required=True, max_length=255), SYNTHETIC)
"""Rows that belong to one host."""

EQUIPMENT = (
    TIME,
    text(
        "equipment",
        "The unit it was read on, as the map of the hall names it.",
        required=True,
        max_length=255,
    ),
    SYNTHETIC,
)
"""Rows that belong to one unit of the building: a coolant unit, a rack's manifold, a meter."""

HALL = (TIME, text("host", "The host concerned, where there is one.", max_length=255), SYNTHETIC)
"""Rows about the hall or about hallwatch itself."""
