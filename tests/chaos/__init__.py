"""Brokers that are killed at random moments while clients work with them, and a ledger of what they promised."""
