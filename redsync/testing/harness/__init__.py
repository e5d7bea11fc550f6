"""Owners that contend for synchronizers, a journal of what they did, and checkers that read it.

`redsync demo`, `make soak`, the tests of single faults on real servers and the simulator's runs by seed differ only in
the faults they inject and in what they show. They share these modules:

- `tasks`: what an owner does with one hold, drawn at random; `owner`: one such thread or task (`blocking` adapts the
  code to threads); `lock_ways`, `ways`: all that it can do with locks, and with synchronizers of other kinds.
- `process`: a process with several owners, controlled by an `Order`; `crew`: starts and kills such processes.
- `journal`: one line for each thing that an owner did; `holds`: the holds that these lines describe; `ledger`: what
  owners read and write under their holds, which shows a broken lock without trusting any clock.
- `exclusion`, `latches`, `losses`, `endings`, `spans`: pure functions that find broken promises; `verdicts` is what
  they share.
- `nemesis`: carries out planned faults.
"""
