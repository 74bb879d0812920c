-- Which of the keys have a value as lockkit's holds have it. Reads no more of the others' values
-- than a hold would have.
--
-- KEYS    any
-- Answer  those of them
local found = {}
for _, key in ipairs(KEYS) do
  local value = redis.pcall('GETRANGE', key, 0, 51)
  local owner, token = string.match(type(value) == 'string' and value or '', '^([0-9a-f]+)%.(%d+)$')
  if owner and #owner == 32 and #token < 19 then table.insert(found, key) end
end
return found
