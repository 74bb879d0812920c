-- Which of the keys have a value as lockkit's holds have it. Reads no more of the others' values
-- than a hold would have, and skips those that the user may not read: keys that were declared would
-- all have to be the user's.
--
-- ARGV    any keys
-- Answer  those of them
local found = {}
for _, key in ipairs(ARGV) do
  if not redis.acl_check_cmd or redis.acl_check_cmd('GETRANGE', key, 0, 51) then
    local value = redis.pcall('GETRANGE', key, 0, 51)
    local owner, token = string.match(type(value) == 'string' and value or '', '^([0-9a-f]+)%.(%d+)$')
    if owner and #owner == 32 and #token < 19 then table.insert(found, key) end
  end
end
return found
