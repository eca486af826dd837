"""How figures move as something grows."""
