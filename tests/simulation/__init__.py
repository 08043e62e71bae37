"""A seeded simulation of clients and servers: `make simulate`. See docs/reference/reliability.md."""
