-- Put after check.lua.
--
-- ARGV    the token; for each command the number of its words, and the words
-- Answer  the answer of each

-- A Lua number skips some whole ones from 2^53 on: rather no answer than a wrong one.
local function exact(answer)
  if type(answer) == 'number' and math.abs(answer) >= 9007199254740992 then
    return redis.error_reply('INEXACT this was carried out, and its answer is too large a number')
  end
  if type(answer) == 'table' then
    for place, part in ipairs(answer) do
      answer[place] = exact(part)
    end
  end
  return answer
end

local answers, at = {}, 2
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  table.insert(answers, exact(redis.call(unpack(ARGV, at + 1, at + words))))
  at = at + 1 + words
end
return answers
