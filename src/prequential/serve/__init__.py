"""The service: predictions now, labels later, many tenants. `prequential serve` starts it."""
