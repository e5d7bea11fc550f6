"""A fencing token: a holder writes after too long a pause, and the database refuses the write.

The table stores the highest token that it has seen; a write with a lower token changes nothing. Ada's
process pauses (here: it sleeps without renewal) after it has checked its lock and before it writes. No lock
can prevent that write; the token does. Self-contained: it starts throwaway servers. To use your own, write
instead:

    client = Client(["redis://redis-1:6379", "redis://redis-2:6379", "redis://redis-3:6379"])
"""

import sqlite3
import time
from contextlib import closing

from redsync import Client, LeaseLostError
from redsync.testing import LocalNodes


class Account:
    """A balance that only the holder of the latest token may change."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute("CREATE TABLE account (balance INTEGER NOT NULL, token INTEGER NOT NULL)")
        database.execute("INSERT INTO account VALUES (100, 0)")

    @property
    def balance(self) -> int:
        return self._database.execute("SELECT balance FROM account").fetchone()[0]

    def write(self, balance: int, token: int) -> bool:
        """Write unless a holder with a later token has written: one statement, so it is atomic."""
        with self._database:
            changed = self._database.execute(
                "UPDATE account SET balance = ?, token = ? WHERE token <= ?", (balance, token, token)
            )
        return changed.rowcount == 1


def main() -> None:
    with (
        closing(sqlite3.connect(":memory:")) as database,
        LocalNodes(3) as nodes,
        nodes.client() as ada,
        nodes.client() as bob,
    ):
        work(Account(database), ada, bob)


def work(account: Account, ada: Client, bob: Client) -> None:
    # A short lease without renewal stands for a process that pauses: its renewals would pause too.
    lock = ada.get_fenced_lock("account:7", lease=0.5)
    try:
        with lock as hold:
            balance, token = account.balance, hold.fencing_token
            hold.check()
            print("Ada reads", balance, "and is paused")
            time.sleep(1.0)

            with bob.get_fenced_lock("account:7") as later:
                print("Bob has a higher token:", later.fencing_token > token)
                print("Bob writes:", account.write(account.balance - 30, later.fencing_token))

            print("Ada resumes and writes:", account.write(balance + 50, token))
    except LeaseLostError:
        print("Ada learns that the lock was lost, too late for her write")
    print("the balance is", account.balance)


if __name__ == "__main__":
    main()
