-- Forget keys that are remembered too long, up to `limit`.
for _, seen in ipairs(call('ZRANGEBYSCORE', M .. ':seen', '-inf', now, 'LIMIT', 0, limit)) do
  local found = call('HGET', M .. ':keys', seen)
  local ends = found and string.match(found, ' (%d+)$')
  if ends and tonumber(ends) <= now then call('HDEL', M .. ':keys', seen) end
  call('ZREM', M .. ':seen', seen)
end
