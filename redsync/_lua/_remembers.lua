-- Purpose: keep a node that lost its memory out of new grants: a claim that it forgot may still be believed.
-- Uses guard: how long the node must have remembered everything, ms, and under which processes; 0: no guard.
if guard ~= '0' then
-- include: memory
-- include: refuse_forgetful
end
