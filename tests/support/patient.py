"""When imported, makes clients wait for each of their first connections: on a busy machine a node may be slow."""

from redsync._drivers import aio_maintenance, maintenance

for module in (maintenance, aio_maintenance):
    module.STRAGGLERS = 20.0
