from tubes.drivers.driver import Driver

#: `fifottl` with room for so many tasks (`capacity`): a put into a full tube waits for room, or answers None. A tube
#: without `capacity` has room for any number, as in the original.
LimFifoTtl = Driver("limfifottl", options={"ttl", "ttr", "pri", "delay", "capacity", "timeout"}, order="pri")
