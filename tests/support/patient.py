"""When imported, makes clients wait for each of their first connections: on a busy machine a node may be slow."""

from redsync._drivers import any_maintenance

any_maintenance.STRAGGLERS = 20.0
