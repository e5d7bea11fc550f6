-- Purpose: find the hash tag with which all keys of a cluster's voter begin; see `redsync/_core/spellings.py`. No key of
-- another node begins so, see `redsync/_core/keys.py`. Uses KEYS[1]. Sets tag, empty if there is none.
local tag = string.match(KEYS[1], '^{rs%d+}') or ''
