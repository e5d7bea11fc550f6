"""Virtual transports: they do what asyncio's do, with bytes that a machine rejects, with ends, and with pauses."""

import asyncio
import socket
import struct

import pytest

from redsync._drivers.channels import pack
from redsync.testing.simulator import Simulation

PING, PONG = pack("PING"), b"+PONG\r\n"
LONG = b"v" * 5000
SET = pack("SET", "key", LONG)


class Recorder(asyncio.Protocol):
    """Records all calls."""

    def __init__(self):
        self.told = []
        self.data = b""

    def connection_made(self, transport):
        self.told.append("made")

    def data_received(self, data):
        self.data += data
        self.told.append("data")

    def pause_writing(self):
        self.told.append("pause")

    def resume_writing(self):
        self.told.append("resume")

    def eof_received(self):
        self.told.append("eof")

    def connection_lost(self, error):
        self.told.append("lost")


SIMULATION = {"seed": 3, "nodes": 1, "checkers": ()}


def connect(sim, machine, wait=True):
    """Return a transport and its protocol, or the error."""

    async def program():
        try:
            return await asyncio.get_running_loop().create_connection(Recorder, "node-1", 6379)
        except OSError as error:
            return error

    task = machine.start(program())
    sim.run(until=sim.now + 1.0)
    return task.result() if wait else task


def pass_time(sim, seconds=1.0):
    sim.run(until=sim.now + seconds)


def value(sim):
    return sim.nodes[0].store.execute(b"GET", b"key")


def test_protocol_gets_connection_data_and_end_once_each(sim, machine):
    transport, protocol = connect(sim, machine)
    transport.write(PING)
    pass_time(sim)
    assert protocol.data == PONG
    sim.nodes[0].crash()
    pass_time(sim)
    transport.close()
    transport.abort()
    pass_time(sim)
    assert protocol.told == ["made", "data", "eof", "lost"]
    assert transport.is_closing()


def test_connecting_to_a_dead_node_is_refused(sim, machine):
    sim.nodes[0].crash()
    assert isinstance(connect(sim, machine), ConnectionRefusedError)


def test_connecting_through_partition_waits_until_it_is_over(sim, machine):
    sim.partition(machine)
    task = connect(sim, machine, wait=False)
    assert not task.done()
    sim.heal()
    pass_time(sim)
    assert task.done()


def test_cancelled_connect_leaves_nothing_on_the_node(sim, machine):
    sim.partition(machine)
    task = connect(sim, machine, wait=False)
    task.cancel()
    pass_time(sim)
    sim.heal()
    pass_time(sim)
    assert task.cancelled()
    assert not sim.nodes[0]._sessions


def test_hosts_and_options_that_do_not_exist_are_refused(sim, machine):
    async def program():
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError, match="no node 'elsewhere'"):
            await loop.create_connection(Recorder, "elsewhere", 6379)
        with pytest.raises(RuntimeError, match="without options"):
            await loop.create_connection(Recorder, "node-1", 6379, ssl=True)

    machine.start(program())
    sim.run()


# Writing.


def test_writer_pauses_while_the_machine_accepts_no_more_and_continues_later(sim, machine):
    transport, protocol = connect(sim, machine)
    sim.narrow(300)
    transport.set_write_buffer_limits(high=1000, low=100)
    transport.write(SET[:2000])
    assert transport.get_write_buffer_size() == 1700
    transport.write(SET[2000:])
    assert protocol.told == ["made", "pause"]
    pass_time(sim, 5.0)
    assert protocol.told == ["made", "pause", "resume", "data"]
    assert transport.get_write_buffer_size() == 0
    assert value(sim) == LONG


def test_bytes_keep_their_order_however_little_the_machine_accepts(sim, machine):
    transport, protocol = connect(sim, machine)
    sim.narrow(7)
    sim.network.split = 0.5
    for number in range(30):
        transport.write(pack("PING", str(number)))
    pass_time(sim, 20.0)
    assert protocol.data == b"".join(b"$%d\r\n%d\r\n" % (len(str(i)), i) for i in range(30))


def test_close_first_sends_the_remaining_bytes(sim, machine):
    transport, protocol = connect(sim, machine)
    sim.narrow(300)
    transport.write(SET)
    transport.close()
    transport.write(PING)
    assert transport.is_closing()
    assert protocol.told == ["made"]
    pass_time(sim, 5.0)
    assert value(sim) == LONG
    assert protocol.told == ["made", "lost"], "a closed transport gets no replies"


def test_abort_drops_the_remaining_bytes(sim, machine):
    transport, protocol = connect(sim, machine)
    sim.narrow(300)
    transport.write(SET)
    transport.abort()
    pass_time(sim, 5.0)
    assert value(sim) is None
    assert protocol.told == ["made", "lost"]


@pytest.mark.parametrize("linger", [None, struct.pack("ii", 1, 0), struct.pack("ii", 1, 5)])
def test_only_reset_discards_bytes_that_the_machine_accepted(linger):
    arrived = set()
    for seed in range(20):
        with Simulation(seed, nodes=1, checkers=()) as sim:
            machine = sim.machine("a")
            transport, _ = connect(sim, machine)
            sim.partition(machine)
            transport.write(SET)
            if linger is not None:
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            transport.abort()
            sim.heal()
            pass_time(sim)
            arrived.add(value(sim) is not None)
    # Without a reset the bytes are sent on, unless the partition has broken the connection.
    assert arrived == ({False} if linger == struct.pack("ii", 1, 0) else {False, True})


# Reading.


def test_paused_reader_gets_all_later_in_order(sim, machine):
    transport, protocol = connect(sim, machine)
    transport.pause_reading()
    transport.write(PING)
    pass_time(sim)
    transport.write(pack("PING", "two"))
    pass_time(sim)
    sim.nodes[0].crash()
    pass_time(sim)
    assert protocol.told == ["made"]
    assert not transport.is_reading()
    transport.resume_reading()
    pass_time(sim)
    assert protocol.data == PONG + b"$3\r\ntwo\r\n"
    assert protocol.told == ["made", "data", "data", "eof", "lost"]


def test_reader_that_pauses_between_two_pieces_gets_the_second_later(sim, machine):
    transport, protocol = connect(sim, machine)

    def pause(data):
        Recorder.data_received(protocol, data)
        transport.pause_reading()

    protocol.data_received = pause
    transport.pause_reading()
    for _ in range(2):
        transport.write(PING)
        pass_time(sim)
    transport.resume_reading()
    assert protocol.data == PONG
    transport.resume_reading()
    assert protocol.data == PONG + PONG


def test_another_protocol_may_take_over(sim, machine):
    transport, first = connect(sim, machine)
    second = Recorder()
    transport.set_protocol(second)
    assert transport.get_protocol() is second
    transport.write(PING)
    pass_time(sim)
    assert (first.data, second.data) == (b"", PONG)


# Faults.


def test_torn_reply_arrives_in_part_and_then_the_end(sim, machine):
    transport, protocol = connect(sim, machine)
    sim.tear(machine, back=1.0)
    transport.write(PING)
    pass_time(sim)
    assert 0 < len(protocol.data) < len(PONG)
    assert PONG.startswith(protocol.data)
    assert protocol.told == ["made", "data", "eof", "lost"]


def test_torn_command_is_not_executed(sim, machine):
    transport, protocol = connect(sim, machine)
    sim.tear(machine, there=1.0)
    transport.write(SET)
    pass_time(sim)
    assert value(sim) is None
    assert protocol.told == ["made", "eof", "lost"]


def test_node_that_ignores_new_connections_accepts_them_and_says_nothing(sim, machine):
    old, told = connect(sim, machine)
    sim.nodes[0].ignore()
    new, nothing = connect(sim, machine)
    old.write(PING)
    new.write(PING)
    pass_time(sim, 30.0)
    assert told.data == PONG
    assert nothing.told == ["made"]
    sim.nodes[0].recover()
    new.write(PING)
    third, answered = connect(sim, machine)
    third.write(PING)
    pass_time(sim)
    assert (nothing.data, answered.data) == (b"", PONG), "an ignored connection stays ignored"
    sim.nodes[0].crash()
    pass_time(sim)
    assert nothing.told == ["made", "eof", "lost"]


def test_node_ends_one_of_its_connections(sim, machine):
    protocols = [connect(sim, machine)[1] for _ in range(3)]
    sim.nodes[0].kick()
    pass_time(sim)
    assert sorted(len(protocol.told) for protocol in protocols) == [1, 1, 3]
    sim.nodes[0].kick()
    sim.nodes[0].kick()
    sim.nodes[0].kick()
    pass_time(sim)
    assert [protocol.told for protocol in protocols] == [["made", "eof", "lost"]] * 3
