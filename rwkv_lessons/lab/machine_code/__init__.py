"""Registers, spills, SASS and occupancy, without a GPU."""
