"""`bench startup`: what it loads has the names of today."""

from bench import startup


def test_startup_measures_every_command():
    figures = startup.run(quick=True)
    assert [figure.what for figure in figures] == [
        "from redsync import Client / import redis",
        "redsync lock / import redis",
        "redsync ls / import redis",
        "import redsync alone",
    ]
