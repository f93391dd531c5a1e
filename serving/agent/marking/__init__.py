"""Marked UDP packets and their receiver."""
