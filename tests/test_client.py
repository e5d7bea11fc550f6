def test_a(client, other, raw):
    with client.get_lock("x"):
        print(raw.keys())
