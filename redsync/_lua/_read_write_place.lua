-- Purpose: take a place in the queue of a read-write lock, or keep it. Writers go before all readers.
-- Uses mode, and what put_place uses. Sets rank: the number of waiters before it.
local rank
local ahead = mode == 'w:' and 2^52 or 0
-- include: put_place
