from tubes.drivers.driver import Driver

#: Lanes with priorities, delays, a time to live and a time to run. For crawlers: utube = host.
UtubeTtl = Driver(
    "utubettl",
    options={"ttl", "ttr", "pri", "delay", "utube"},
    order="pri",
    lane="utube",
    ttl_spares_taken=True,
)
