"""Grafana dashboards as code: their panels, their provisioning and their publication.
Imports contract only; every other package is a stranger."""
