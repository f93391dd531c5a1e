"""Monitoring of the loop: Prometheus' targets and alert rules, and the Grafana dashboard."""
