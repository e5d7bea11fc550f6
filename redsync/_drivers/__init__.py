"""The drivers: they perform effects and know nothing of locks."""
