"""UDP packets that are really marked, and their receiver."""
