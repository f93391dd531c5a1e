"""Confucius (a router's rule by occupancy and age), after its paper's evaluation."""
