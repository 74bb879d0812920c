-- What the driver would send and the server would refuse: {the user may not, nobody can}. Sends none
-- of it. Nothing where the server cannot tell, before Redis 7.0.
if not redis.acl_check_cmd then return false end

local function missing(commands)
  local denied, unknown = {}, {}
  for _, command in ipairs(commands) do
    local words = {}
    for word in string.gmatch(command, '[^ |]+') do table.insert(words, word) end
    local name = string.match(command, '^%S+')
    -- It raises an error for what the server does not know.
    local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
    if not known then
      table.insert(unknown, name)
    elseif not allowed then
      table.insert(denied, name)
    end
  end
  return {denied, unknown}
end
