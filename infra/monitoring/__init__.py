"""Watching the loop: what Prometheus scrapes, what it alarms on, and the Grafana dashboard."""
