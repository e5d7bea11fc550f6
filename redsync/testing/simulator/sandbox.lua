-- Purpose: the environment that a real node gives its scripts: the table `redis`, and no way to leave globals behind.
-- Arguments: invoke(command, ...): executes a command of the present store; as_list(...) and as_error(text): make
-- Python values. Returns: compile(source) and execute(chunk, number of keys, keys..., arguments...).
local invoke, as_list, as_error = ...
local ceil, floor, format, match, type = math.ceil, math.floor, string.format, string.match, type

-- A reply has a prefix unless it is a single value: true before an array's elements, nil before a table's field.
local function answer(first, ...)
  if first == true then return {...} end
  if first == nil then
    local field, text = ...
    return {[field] = text}
  end
  return first
end

local function pcall_command(...)
  return answer(invoke(...))
end

local function call_command(...)
  local reply = answer(invoke(...))
  if type(reply) == 'table' and reply.err then
    local line = debug.getinfo(2, 'l').currentline -- none if the script returned the call's result
    error({err = reply.err, line = line > 0 and line or nil})
  end
  return reply
end

local function readonly(names)
  return setmetatable({}, {
    __index = names,
    __newindex = function() error('Attempt to modify a readonly table', 2) end,
  })
end

-- No math.random: a simulation must be reproducible. No pcall: it would swallow the simulator's own mistakes.
local environment = readonly(setmetatable({
  assert = assert, error = error, ipairs = ipairs, next = next, pairs = pairs, select = select, tonumber = tonumber,
  tostring = tostring, type = type, unpack = unpack,
  math = readonly({
    abs = math.abs, ceil = ceil, floor = floor, fmod = math.fmod, huge = math.huge, max = math.max, min = math.min,
  }),
  string = readonly(string),
  table = readonly(table),
  redis = readonly({
    call = call_command,
    pcall = pcall_command,
    error_reply = function(text) return {err = (text:gsub('^-', ''))} end,
    status_reply = function(text) return {ok = text} end,
  }),
}, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
}))

-- Locals are faster than globals; this one shares the script's first line, so that line numbers stay.
local function compile(source)
  return setfenv(assert(loadstring('local KEYS, ARGV = ... ' .. source, '@user_script')), environment)
end

local function convert(value)
  local kind = type(value)
  if kind == 'number' then return value < 0 and ceil(value) or floor(value) end
  if kind == 'string' then return value end
  if kind ~= 'table' then return value == true and 1 or nil end
  if type(value.err) == 'string' then return as_error(value.err) end
  if type(value.ok) == 'string' then return value.ok end
  local items, count = {}, 0
  for i, item in ipairs(value) do
    items[i], count = convert(item), i
  end
  return as_list(unpack(items, 1, count))
end

local function execute(chunk, key_count, ...)
  local done, result = pcall(chunk, {unpack({...}, 1, key_count)}, {select(key_count + 1, ...)})
  if done then return convert(result) end
  if type(result) == 'userdata' then error(result, 0) end -- a Python exception, not a node's reply
  local text, line
  if type(result) == 'table' then
    text, line = result.err, result.line
  else
    text, line = 'ERR ' .. result, match(result, '^user_script:(%d+):')
  end
  return as_error(format('%s script: on @user_script:%s.', text, line or '?'))
end

return compile, execute
