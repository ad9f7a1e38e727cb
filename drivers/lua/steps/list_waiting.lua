-- List `processes` that wait, each with the number of its callers and until when that is valid: at most `most`,
-- chosen at random if there are more. The last entry is the number of all.
-- in: most
-- out: processes
local processes = call('HRANDFIELD', M .. ':waiting', most, 'WITHVALUES')
processes[#processes + 1] = call('HLEN', M .. ':waiting')
