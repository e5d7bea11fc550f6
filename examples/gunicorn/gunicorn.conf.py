"""Start it with `gunicorn shop:app` in this directory, and REDSYNC_URLS in the environment."""

workers = 2
preload_app = True  # the application is imported once, before the workers are forked


def post_fork(server, worker):
    from shop import locks

    # Made here, and not before the fork: the master has no need of connections, nor of a thread that renews.
    worker.log.info("worker %s is client %s", worker.pid, locks().id)


def worker_exit(server, worker):
    from shop import locks

    locks().close()  # gives back what is still held
    worker.log.info("worker %s closed its client", worker.pid)
