from tubes.drivers.driver import Driver

#: `fifottl` with a `capacity`: a put into a full tube waits for room. A tube without a `capacity` has no limit, as in
#: the original.
LimFifoTtl = Driver("limfifottl", options={"ttl", "ttr", "pri", "delay", "capacity", "timeout"}, order="pri")
