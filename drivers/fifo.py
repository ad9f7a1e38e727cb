from tubes.drivers.driver import Driver

#: First in, first out. For plain hand-over of work.
Fifo = Driver("fifo")
