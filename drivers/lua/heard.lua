-- Somebody listens until the moment `ends`. Behind it stands which edition the options are of, if the tube was altered.
local edition = string.match(call('HGET', M, 'listening') or '', ' %x+$')
call('HSET', M, 'listening', string.format('%.0f', ends) .. (edition or ''))
