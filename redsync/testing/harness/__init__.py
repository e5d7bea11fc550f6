"""One fault harness: owners that fight over synchronizers, a journal of what they did, and checkers that read it.

`redsync demo`, `make soak`, the tests of single faults on real servers and the simulator's runs by seed differ in the
faults they inject and in what they show. All else is here:

- `tasks`: what an owner does with one hold, drawn at random; `owner`: who does so, in both flavours (`blocking`), and
  `lock_ways`, `read_write_ways`, `permit_ways`, `rate_ways`, `latch_ways`: all that it can do with things of one kind.
- `process`: a process with several owners, told what to do by an `Order`; `crew`: such processes, started and killed.
- `journal`: one line for each thing that an owner did; `holds`: what these lines amount to; `ledger`: what owners
  read and write under their holds, so that a broken lock is seen without trusting any clock.
- `exclusion`, `latches`, `losses`, `endings`, `spans`: pure functions that find broken promises; `verdicts` is what
  they share.
- `nemesis`: carries planned faults out.
"""
