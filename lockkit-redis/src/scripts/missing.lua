-- What the driver would send and the user may not. Sends none of it. Nothing where the server cannot
-- tell, before Redis 7.0.
if not redis.acl_check_cmd then return false end

local function missing(commands)
  local names = {}
  for _, command in ipairs(commands) do
    local words = {}
    for word in string.gmatch(command, '[^ |]+') do table.insert(words, word) end
    -- It raises an error for what the server does not know.
    local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
    if not known or not allowed then
      table.insert(names, string.match(command, '^%S+'))
    end
  end
  return names
end
