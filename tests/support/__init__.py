"""What several folders of tests use: servers, processes, proxies, ledgers, a naive model of the machine."""
