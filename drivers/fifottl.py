from tubes.drivers.driver import Driver

#: By priority, then first in, first out; with delays, a time to live and a time to run.
FifoTtl = Driver("fifottl", options={"ttl", "ttr", "pri", "delay"}, order="pri")
