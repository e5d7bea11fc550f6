-- Purpose: tell void versions of a limit from others.
-- A resize makes its version from the time since 1970 in hundredths of a second, times 16384, plus the permits. A version
-- more than a year ahead of this node's clock is void: no resize has made it, and the next resize could not exceed it.
-- So this node neither keeps nor obeys a void version, wherever it comes from. Uses now, ms.
local function is_void(version)
  return version / 16384 > now / 10 + 3162240000
end
