-- Something happens at `moment`: the next call processes it.
-- in: moment
if not soonest or moment < soonest then
  soonest = moment
  call('HSET', M, 'soonest', moment)
end
