from tubes.drivers.driver import Driver

#: Many queues in one: the tasks of each lane (utube) are taken first in, first out, and one at a time.
Utube = Driver("utube", options={"utube"}, lane="utube")
