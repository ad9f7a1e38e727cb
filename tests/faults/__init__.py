"""What must hold when processes, connections and servers fail: every task put is accounted for."""
