"""A unit test for your code, without a server: the nodes are fakeredis instances.

Run it with pytest, or as a program. To test against real servers and real failures, use
`redsync.testing.LocalNodes` or the pytest fixtures `redsync_nodes` and `redsync_client`.
"""

import threading
from collections.abc import Callable

import fakeredis

from redsync import AcquireTimeout, Client

# The code under test.


class Shop:
    """Never sells more than its stock."""

    def __init__(self, client: Client, stock: int) -> None:
        self._client = client
        self.stock = stock

    def sell(self) -> bool:
        try:
            with self._client.get_lock("stock", timeout=5.0):
                if not self.stock:
                    return False
                self.stock -= 1
                return True
        except AcquireTimeout:
            return False


# Its tests.


def make_client() -> Client:
    return Client([fakeredis.FakeRedis(server=fakeredis.FakeServer()) for _ in range(3)])


def test_shop_sells_what_it_has() -> None:
    with make_client() as client:
        shop = Shop(client, stock=2)
        assert [shop.sell() for _ in range(3)] == [True, True, False]


def test_shop_never_sells_more_to_many_customers() -> None:
    sold: list[bool] = []
    with make_client() as client:
        shop = Shop(client, stock=3)
        customers = [threading.Thread(target=lambda: sold.append(shop.sell())) for _ in range(5)]
        for customer in customers:
            customer.start()
        for customer in customers:
            customer.join()
    assert sold.count(True) == 3
    assert shop.stock == 0


def main() -> None:
    tests: list[Callable[[], None]] = [
        test_shop_sells_what_it_has,
        test_shop_never_sells_more_to_many_customers,
    ]
    for test in tests:
        test()
        print(f"{test.__name__}: passed")


if __name__ == "__main__":
    main()
