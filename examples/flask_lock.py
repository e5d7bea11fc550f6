"""Flask: one view holds a lock while it runs, and another one has a rate limit.

Self-contained: it starts throwaway servers. To use your own, set REDSYNC_URLS and run
`gunicorn flask_lock:app`.
"""

import os
import time

from flask import Flask

from redsync.contrib.flask import Redsync
from redsync.testing import LocalNodes

app = Flask(__name__)
redsync = Redsync()


@app.post("/orders/<int:number>/pay")
@redsync.lock("order:{number}", timeout=0.5)
def pay(number: int) -> dict[str, str]:
    time.sleep(0.1)  # stands for a request to a bank
    redsync.hold.check()
    return {"paid": f"order {number}"}


@app.get("/search/<words>")
@redsync.limit("search:{client}", 2, per=60)
def search(words: str) -> dict[str, str]:
    return {"found": words}


if os.environ.get("REDSYNC_URLS"):
    redsync.init_app(app)  # bad settings stop the program here


# The rest is the demonstration.


def main() -> None:
    with LocalNodes(3) as nodes, nodes.client() as another_machine:
        app.config["REDSYNC"] = {"URLS": nodes.urls, "RESTART_GUARD": 0.0}
        redsync.init_app(app)
        web = app.test_client()
        print("free:", web.post("/orders/1/pay").status)
        with another_machine.get_lock("order:1"):
            print("held by another machine:", web.post("/orders/1/pay").status)
        for reply in [web.get("/search/lock") for _ in range(3)]:
            print("search:", reply.status, reply.headers.get("Retry-After", ""))
        with app.app_context():
            redsync.client.close()


if __name__ == "__main__":
    main()
