-- Purpose: split a claim into its owner and its number. Numbers only grow, so a script can recognize a late command.
-- Uses ARGV[1] claim: "<owner>:<number>". Sets waiter and number; nil for a claim of another library.
local waiter, number = string.match(ARGV[1], '^(.*):(%d+)$')
number = tonumber(number)
