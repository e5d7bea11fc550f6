-- Purpose: split a claim into its owner and its number. Numbers only grow, so a script can recognize a late command.
-- Uses ARGV[1] claim: "<owner>:<number>", of a read-write lock behind its mode, "r:" or "w:". Sets waiter and number;
-- nil for a claim of another library.
local waiter, number = string.match(ARGV[1], '^[rw]:(.*):(%d+)$')
if not waiter then waiter, number = string.match(ARGV[1], '^(.*):(%d+)$') end
number = tonumber(number)
