"""Kopf handlers and the applier."""
