from tubes.drivers.driver import Driver

#: Many queues in one, a lane (utube) each: first in, first out, and of one utube at most one task is taken.
Utube = Driver("utube", options={"utube"}, lane="utube")
