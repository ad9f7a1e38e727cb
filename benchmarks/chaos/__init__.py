"""Count the tasks that tubes and its peers lose or do twice under faults."""
