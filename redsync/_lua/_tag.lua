-- Purpose: find the tag with which all keys of a cluster's voter begin, see `redsync/_core/clusters.py`. No key of any
-- other node begins like that, see `redsync/_core/keys.py`. Uses KEYS[1]. Sets tag, empty on other nodes.
local tag = string.match(KEYS[1], '^{rs%d+}') or ''
