"""Start with `gunicorn shop:app` in this directory, and with REDSYNC_URLS in the environment."""

workers = 2
preload_app = True  # the application is imported once, before the workers are forked


def post_fork(server, worker):
    from shop import locks

    # Created here and not before the fork: the master needs neither connections nor a thread that renews.
    worker.log.info("worker %s is client %s", worker.pid, locks().id)


def worker_exit(server, worker):
    from shop import locks

    locks().close()  # releases all holds
    worker.log.info("worker %s closed its client", worker.pid)
