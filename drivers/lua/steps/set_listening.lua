-- There are listeners until the moment `ends`. Keep the version of the options, which is in the same field.
-- in: ends
local version = string.match(call('HGET', M, 'listening') or '', ' %x+$')
call('HSET', M, 'listening', string.format('%.0f', ends) .. (version or ''))
