-- Put after check.lua.
--
-- ARGV    the token; for each command the number of its words, and the words
-- Answer  the answer of each
local answers, at = {}, 2
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  table.insert(answers, redis.call(unpack(ARGV, at + 1, at + words)))
  at = at + 1 + words
end
return answers
