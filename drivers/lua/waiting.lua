-- List who waits, `processes`: by process how many callers and until when that counts, `most` of them, by chance where there are
-- more; then how many there are.
local processes = call('HRANDFIELD', M .. ':waiting', most, 'WITHVALUES')
processes[#processes + 1] = call('HLEN', M .. ':waiting')
