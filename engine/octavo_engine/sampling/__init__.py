"""Penalties, filters, seeded sampling."""
