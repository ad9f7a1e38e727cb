"""The mutants: each is one fault in one file, and the tests that should notice it soonest."""

from __future__ import annotations

from typing import Final, NamedTuple

_FIFO = "tests/api/test_contract.py::TestFifo"
_UTUBETTL = "tests/api/test_contract.py::TestUtubeTtl"
_FIFO_ON_REDIS = "tests/on_redis/test_contract_on_redis.py::TestFifo"
_UTUBETTL_ON_REDIS = "tests/on_redis/test_contract_on_redis.py::TestUtubeTtl"


def _of(place: str, test: str) -> tuple[str, str]:
    """One test of a file or a class, then all of them."""
    return f"{place}::test_{test}", place


class Mutant(NamedTuple):
    """One fault: the text `old` of a file is replaced by `new`. `tests`: what is run first."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, text: str) -> str:
        """Return the text of the file with the fault. Raises `SystemExit` unless `old` stands there exactly once."""
        if (count := text.count(self.old)) != 1:
            raise SystemExit(f"mutant {self.name!r}: {self.path} must have its text once, has it {count} times")
        return text.replace(self.old, self.new)


MUTANTS: Final[tuple[Mutant, ...]] = (
    # -- the engine ----------------------------------------------------------------------------------------------------
    Mutant(
        "take does not count the attempt",
        "drivers/engine.py",
        "entry.attempts += 1\n            if self.dated:",
        "if self.dated:",
        _of(_UTUBETTL, "task_counts_its_attempts"),
    ),
    Mutant(
        "last attempt is one too late",
        "drivers/engine.py",
        "0 < entry.more.max_attempts <= entry.attempts",
        "0 < entry.more.max_attempts < entry.attempts",
        _of(_FIFO, "task_released_after_its_last_attempt_is_buried"),
    ),
    Mutant(
        "capacity admits one more task",
        "drivers/engine.py",
        "len(self.tasks) + count <= self.capacity",
        "len(self.tasks) + count <= self.capacity + 1",
        ("tests/api/test_contract.py::TestRoomOfLimFifoTtl",),
    ),
    Mutant(
        "delay does not prolong the ttl of a put",
        "drivers/engine.py",
        "                if delay:\n                    ttl += delay\n",
        "",
        _of(_UTUBETTL, "put_with_delay_extends_the_ttl"),
    ),
    Mutant(
        "release does not prolong the life by its delay",
        "drivers/engine.py",
        "entry.until = now + delay\n        self._prolong(now, entry, delay)",
        "entry.until = now + delay",
        _of(_UTUBETTL, "release_with_delay_extends_the_ttl"),
    ),
    Mutant(
        "held ignores the number of the take",
        "drivers/engine.py",
        "if entry is None or (take and entry.take != take):",
        "if entry is None:",
        _of(_FIFO, "task_object_of_an_earlier_take_cannot_be_acked"),
    ),
    Mutant(
        "touch does not extend the time to run",
        "drivers/engine.py",
        "            until += span\n            entry.until",
        "            entry.until",
        _of(_UTUBETTL, "touch_extends_the_current_and_later_takes"),
    ),
    Mutant(
        "update leaves the task at its old place",
        "drivers/engine.py",
        "            new.pri = pri\n            self._rank(new)\n        if ttl",
        "            new.pri = pri\n        if ttl",
        _of(_UTUBETTL, "update_of_the_priority_changes_the_place"),
    ),
    # -- timers, lanes, rate limits, ready tasks, backoff, done tasks, keys, moves -----------------------------------
    Mutant(
        "timers fire one microsecond late",
        "drivers/timers.py",
        "while self.soonest <= now:",
        "while self.soonest < now:",
        ("tests/unit/test_timers.py",),
    ),
    Mutant(
        "postponed deadline still fires",
        "drivers/timers.py",
        "                if entry.due == due:\n                    return entry\n",
        "                if entry.due != NEVER:\n                    return entry\n",
        ("tests/unit/test_timers.py",),
    ),
    Mutant(
        "opened slot is not sorted",
        "drivers/timers.py",
        "        next.sort()\n",
        "",
        ("tests/unit/test_timers.py",),
    ),
    Mutant(
        "lane runs one task more than its limit",
        "drivers/lanes.py",
        "if self.taken >= self.limit or (head.rank",
        "if self.taken > self.limit or (head.rank",
        ("tests/unit/test_lanes.py",),
    ),
    Mutant(
        "free lane does not offer its next task",
        "drivers/lanes.py",
        "if self.behind is not None and self.head is None and self.taken < self.limit:",
        "if self.behind is not None and self.head is None and self.taken + 1 < self.limit:",
        ("tests/unit/test_lanes.py",),
    ),
    Mutant(
        "lane keeps a task of lower rank on offer",
        "drivers/lanes.py",
        "head.rank < entry.rank if head",
        "True if head",
        ("tests/unit/test_lanes.py",),
    ),
    Mutant(
        "lane of a rate limit never cools down",
        "drivers/rate_limits.py",
        "self.due = moment if moment > now else NEVER",
        "self.due = NEVER",
        ("tests/unit/test_rate_limits.py",),
    ),
    Mutant(
        "interval counts from the start before the last",
        "drivers/rate_limits.py",
        "last = self.starts[0]\n        if last.at < 0:",
        "last = self.starts[1]\n        if last.at < 0:",
        ("tests/unit/test_rate_limits.py",),
    ),
    Mutant(
        "block of a lane ends its interval",
        "drivers/rate_limits.py",
        "return max(self.blocked, last.at + span)",
        "return self.blocked or last.at + span",
        ("tests/unit/test_rate_limits.py",),
    ),
    Mutant(
        "returned task comes after equal newer ones",
        "drivers/ready.py",
        "if entry.index is self and back and back[0][0] < entry.rank:",
        "if entry.index is self and back and back[0][0] > entry.rank:",
        ("tests/unit/test_ready.py",),
    ),
    Mutant(
        "discarded task is still taken",
        "drivers/ready.py",
        "entry = line.popleft() if self._rising else line.pop()\n                if entry.index is self:",
        "entry = line.popleft() if self._rising else line.pop()\n                if entry:",
        ("tests/unit/test_ready.py",),
    ),
    Mutant(
        "backoff is one attempt ahead",
        "drivers/backoff.py",
        "self.delays[min(max(attempts, 1), len(self.delays)) - 1]",
        "self.delays[min(max(attempts, 1), len(self.delays) - 1)]",
        _of(_UTUBETTL, "release_delays_the_task_by_the_backoff"),
    ),
    Mutant(
        "jitter makes delays longer",
        "drivers/backoff.py",
        "varied(span, -self.jitter,",
        "varied(span, self.jitter,",
        _of(_UTUBETTL, "backoff_jitter_shortens_delays_reproducibly"),
    ),
    Mutant(
        "done task is found after its time",
        "drivers/done.py",
        "done.until > now else None",
        "done.until >= now else None",
        ("tests/unit/test_done.py",),
    ),
    Mutant(
        "keep_done_max keeps one more",
        "drivers/done.py",
        "over = len(self._order) - most\n",
        "over = len(self._order) - most - 1\n",
        _of(_FIFO, "keep_done_max_limits_the_kept_tasks"),
    ),
    Mutant(
        "key is remembered one microsecond too long",
        "drivers/keys.py",
        "return known[0] if known is not None and known[1] > now else None",
        "return known[0] if known is not None and known[1] >= now else None",
        _of("tests/api/test_keys.py", "expired_keys_are_free"),
    ),
    Mutant(
        "key is forgotten with its old end",
        "drivers/keys.py",
        "at = len(bucket) if bucket[-_SIZE:] < record else _after(bucket, until)",
        "at = len(bucket)",
        _of("tests/api/test_keys.py", "known_keys_share_a_bucket_and_expire_in_their_own_order"),
    ),
    Mutant(
        "untake does not take back its count",
        "drivers/moves.py",
        'Move(_R, "release", ("take",), -1)',
        'Move(_R, "release", ("take",), 0)',
        _of(_UTUBETTL, "cancelled_take_undoes_the_start_of_its_lane"),
    ),
    # -- the machine in Lua --------------------------------------------------------------------------------------------
    Mutant(
        "task that leaves taken stays in the set",
        "drivers/lua/move.lua",
        "call('ZREM', M .. ':taken', task.id)\n",
        "",
        _of(_FIFO_ON_REDIS, "an_acked_task_is_gone"),
    ),
    Mutant(
        "kicked task stays among the buried",
        "drivers/lua/move.lua",
        "call('ZREM', M .. ':buried', place(task))\n",
        "",
        _of(_FIFO_ON_REDIS, "kick_returns_the_number_of_kicked_tasks"),
    ),
    Mutant(
        "acked task keeps its due time",
        "drivers/lua/move.lua",
        "--#end\n  call('ZREM', M .. ':due', pack('>I6', task.id))\nend\ntask.due = nil",
        "--#end\nend\ntask.due = nil",
        ("tests/on_redis/test_work_per_call.py::test_acked_task_has_no_due_time",),
    ),
    Mutant(
        "taken task outlives its ttl",
        "drivers/lua/move.lua",
        "task.created + task.ttl < due) then",
        "task.created + task.ttl > due) then",
        _of(
            "tests/on_redis/test_contract_on_redis.py::TestRareRulesOfLimFifoTtl",
            "take_with_a_listener_ends_with_the_ttr_or_the_ttl",
        ),
    ),
    Mutant(
        "due tasks move one microsecond late",
        "drivers/lua/begin.lua",
        "if soonest and now >= soonest then",
        "if soonest and now > soonest then",
        _of(_UTUBETTL_ON_REDIS, "a_task_returns_when_its_ttr_is_over"),
    ),
    Mutant(
        "repeated call is done again",
        "drivers/lua/begin.lua",
        "if last and last >= ARGV[4] then",
        "if last and last >= ARGV[4] .. ';' then",
        _of("tests/on_redis/test_retries.py", "resent_call_gets_the_first_reply"),
    ),
    Mutant(
        "put into a full tube is admitted",
        "drivers/lua/room.lua",
        "+ needed > capacity then",
        "+ needed > capacity + 1 then",
        ("tests/on_redis/test_contract_on_redis.py::TestRoomOfLimFifoTtl",),
    ),
    Mutant(
        "last attempt is released",
        "drivers/lua/lib/failures.lua",
        "task.attempts >= task.most",
        "task.attempts > task.most",
        _of(_FIFO_ON_REDIS, "task_released_after_its_last_attempt_is_buried"),
    ),
    Mutant(
        "delay of a release does not prolong the life",
        "drivers/lua/release_one.lua",
        "    prolong(task, span)\n",
        "",
        _of(_UTUBETTL_ON_REDIS, "release_with_delay_extends_the_ttl"),
    ),
    Mutant(
        "session may end the take of its neighbour",
        "drivers/lua/lib/held.lua",
        "if not take or take < 0 or take >= TAKES then return nil end",
        "if not take then return nil end",
        _of(_FIFO_ON_REDIS, "task_of_another_session_cannot_be_acked"),
    ),
    Mutant(
        "tasks of an ended session are released in any order",
        "drivers/lua/lib/holds.lua",
        "return tonumber(a) < tonumber(b) end)",
        "return tonumber(a) > tonumber(b) end)",
        _of(_FIFO_ON_REDIS, "a_closed_session_releases_its_tasks_in_the_order_of_their_ids"),
    ),
    Mutant(
        "task behind a freed lane is not offered",
        "drivers/lua/lane_after.lua",
        "    call('ZREM', M .. ':behind', lane_key .. lane_head)\n    call('ZADD', M .. ':offers', 0, lane_head)\n",
        "    call('ZREM', M .. ':behind', lane_key .. lane_head)\n",
        _of(_UTUBETTL_ON_REDIS, "task_that_leaves_its_lane_frees_the_next_task"),
    ),
    Mutant(
        "task that comes first in its lane stays behind",
        "drivers/lua/append.lua",
        "if first and (first < at or",
        "if first and (first > at or",
        _of(_UTUBETTL_ON_REDIS, "better_task_put_meanwhile_precedes_the_returned_task"),
    ),
    Mutant(
        "remembered key stays in use",
        "drivers/lua/lib/keys.lua",
        "if at and unpack_struct('>I7', records, at) > now then",
        "if at then",
        _of(_FIFO_ON_REDIS, "a_key_may_be_remembered_after_its_task_is_gone"),
    ),
    Mutant(
        "interval of a lane ends its block",
        "drivers/lua/lib/paces.lua",
        "moment = math.max(moment, pace.at + varied(interval, pace.jitter, 0, pace.id, pace.attempts))",
        "moment = pace.at + varied(interval, pace.jitter, 0, pace.id, pace.attempts)",
        _of(_UTUBETTL_ON_REDIS, "later_end_of_block_and_interval_counts"),
    ),
    Mutant(
        "undone take leaves its start",
        "drivers/lua/lane_after.lua",
        "if task.undone then rest_anew() else note_end() end",
        "if not task.undone then note_end() end",
        _of("tests/on_redis/test_retries.py", "undone_take_gives_back_the_start_of_its_lane"),
    ),
    Mutant(
        "stale ids of the list are taken",
        "drivers/lua/lib/ready_list.lua",
        "  if not value or byte(value, 1) % 4 ~= 0 then return false end\n",
        "  if not value then return false end\n",
        _of("tests/on_redis/test_work_per_call.py", "buried_task_is_not_taken_although_its_id_stays_in_the_list"),
    ),
    Mutant(
        "popped task of a batch is not put back",
        "drivers/lua/lib/ready_list.lua",
        "if loose == 0 then call(UNPOP, M .. ':ready', ids[n]) else push({ id = ids[n] }) end",
        "if loose == 0 then call(UNPOP, M .. ':ready', ids[n]) end",
        _of("tests/on_redis/test_work_per_call.py", "returned_tasks_that_exceed_a_reply_keep_their_order"),
    ),
    Mutant(
        "end of a pause wakes no waiter",
        "drivers/lua/time.lua",
        "tonumber(lease) or math.huge, pause)",
        "tonumber(lease) or math.huge)",
        _of("tests/on_redis/test_pauses.py", "waiter_is_served_when_a_pause_ends_after_a_delay"),
    ),
    Mutant(
        "keep_done_max keeps one task less",
        "drivers/lua/lib/kept.lua",
        "math.min(over, 50) - 1))",
        "math.min(over, 50)))",
        _of(_FIFO_ON_REDIS, "keep_done_max_limits_the_kept_tasks"),
    ),
    # -- the journal of a folder ---------------------------------------------------------------------------------------
    Mutant(
        "last moves are not counted after opening",
        "tubes/durable/journal.py",
        "row = self._row(self._base, entry, epoch | moves.get(id, 0))",
        "row = self._row(self._base, entry, epoch)",
        ("tests/durable/test_twin_in_a_folder.py",),
    ),
    Mutant(
        "remembered key is not written",
        "tubes/durable/journal.py",
        "if found is None or found[1] <= now:",
        "if found is None or found[1] > now:",
        _of("tests/durable/test_opening.py", "key_of_a_task_that_has_gone_is_remembered_after_opening"),
    ),
    Mutant(
        "start of a throttled lane is not written",
        "tubes/durable/journal.py",
        "        if engine.throttled:\n",
        "        if not engine.throttled:\n",
        _of("tests/durable/test_opening.py", "lanes_are_restored_after_reopening"),
    ),
    Mutant(
        "release is not counted in the file",
        "tubes/durable/engine.py",
        "elif step is not self._put:\n            self.absolute = True",
        "elif step is not self._put:\n            pass",
        _of("tests/durable/test_opening.py", "release_is_counted_after_a_kill"),
    ),
    Mutant(
        "undo forgets the number of a take",
        "tubes/durable/engine.py",
        "entry.hold, entry.take = hold, take",
        "entry.hold, entry.take = hold, 0",
        _of("tests/durable/test_faults_in_a_folder.py", "refused_put_leaves_a_taken_task_with_its_holder"),
    ),
    Mutant(
        "clock that was set back delays tasks",
        "tubes/durable/store.py",
        "if span <= 0:",
        "if span <= 10**15:",
        _of("tests/durable/test_opening.py", "reopened_store_keeps_the_time_left_after_a_clock_was_set_back"),
    ),
    Mutant(
        "ttl is lost when the folder is opened",
        "tubes/durable/rows.py",
        "entry.dead = NEVER if dead is None else dead",
        "entry.dead = NEVER",
        ("tests/durable/test_twin_in_a_folder.py",),
    ),
    Mutant(
        "ids are reused after reopening",
        "tubes/durable/reading.py",
        'facts["next_id"], 0 if most is None else most - ids[0] + 1)',
        'facts["next_id"])',
        _of("tests/durable/test_opening.py", "ids_are_not_reused_after_reopening"),
    ),
    Mutant(
        "commit during a sync counts as synced",
        "tubes/durable/syncer.py",
        "        self._synced = written\n",
        "        self._synced = self.written\n",
        ("tests/durable/test_syncing.py",),
    ),
    Mutant(
        "failed sync is tried again",
        "tubes/durable/syncer.py",
        "        if self._error is not None:\n            return\n",
        "",
        ("tests/durable/test_syncing.py",),
    ),
    # -- the backend in memory ----------------------------------------------------------------------------------------
    Mutant(
        "ack of an old take ends the new one",
        "tubes/memory/port.py",
        "entry.hold is not hold or (is_task and entry.take != task._take):",
        "entry.hold is not hold:",
        _of(_UTUBETTL, "task_object_of_an_earlier_take_cannot_be_acked"),
    ),
    Mutant(
        "short take does not count the attempt",
        "tubes/memory/quick.py",
        "entry.attempts = attempts = entry.attempts + 1",
        "entry.attempts = attempts = entry.attempts",
        ("tests/memory/test_quick.py",),
    ),
    Mutant(
        "task of a waiter that has gone stays taken",
        "tubes/memory/shared_tube.py",
        "                    if not self.rouse(waiter):\n                        engine.untake(now, entry)\n",
        "                    self.rouse(waiter)\n",
        ("tests/api/test_waiting.py",),
    ),
    Mutant(
        "waiter gets a task after its deadline",
        "tubes/memory/shared_tube.py",
        "return waiter.lost() or (waiter.deadline is not None and waiter.deadline < now and not self._clock_wakes)",
        "return waiter.lost()",
        _of("tests/api/test_waiting.py", "timed_out_take_gets_nothing_while_its_loop_is_blocked"),
    ),
    Mutant(
        "interrupted take is not undone",
        "tubes/memory/shared_tube.py",
        "                        self._undo_takes(now, first, end or engine.next_take)\n",
        "                        pass\n",
        _of("tests/memory/test_interrupts.py", "interrupted_take_has_no_effect"),
    ),
    Mutant(
        "batch of a waiter has one task too many",
        "tubes/memory/verbs.py",
        "return [first, *self.take_many(limit - 1)]",
        "return [first, *self.take_many(limit)]",
        _of(_FIFO, "waiting_take_many_gets_several_tasks_of_one_batch"),
    ),
    # -- waiting on a server, and retries ------------------------------------------------------------------------------
    Mutant(
        "put that may have been done ends without a warning",
        "tubes/redis/wait_states.py",
        "_LATE_AGAIN: WaitMove(_ANSWERED, wakes=True, warns=True),\n    },\n    # The reply to a put is lost.",
        "_LATE_AGAIN: WaitMove(_ANSWERED, wakes=True),\n    },\n    # The reply to a put is lost.",
        ("tests/unit/test_wait_states.py",),
    ),
    Mutant(
        "waiter that could not be woken counts as served",
        "tubes/redis/wait_states.py",
        '"unheard": {_ANSWERED: WaitMove(_GONE)}',
        '"unheard": {_ANSWERED: WaitMove(_ANSWERED)}',
        ("tests/unit/test_wait_states.py",),
    ),
    Mutant(
        "waiter with a take on its way gets another",
        "tubes/redis/wait_queue.py",
        "elif line[waiter] is not _ARMED:",
        "else:",
        ("tests/unit/test_wait_states.py",),
    ),
    Mutant(
        "arriving waiters are counted",
        "tubes/redis/wait_queue.py",
        "not waiter.is_gone() and waiter not in self.arriving",
        "not waiter.is_gone()",
        ("tests/unit/test_wait_states.py",),
    ),
    Mutant(
        "task for a waiter that has gone is not given back",
        "tubes/redis/serving.py",
        "if not self._queue.give(waiter, _shown(port, reply)):",
        "if self._queue.give(waiter, _shown(port, reply)) is None:",
        ("tests/unit/test_wait_states.py",),
    ),
    Mutant(
        "coalesced puts have no limit of bytes",
        "tubes/redis/coalesced_puts.py",
        "if count == MOST or self._size >= BYTES:",
        "if count == MOST:",
        _of("tests/on_redis/test_coalesced_puts.py", "coalesced_calls_have_bounded_size"),
    ),
    Mutant(
        "coalesced puts get the options of the first",
        "tubes/redis/coalesced_puts.py",
        "if runs and runs[-1][0] is new:",
        "if runs:",
        _of("tests/on_redis/test_coalesced_puts.py", "coalesced_puts_make_the_same_tasks_as_single_puts"),
    ),
    Mutant(
        "repeated call has another number",
        "tubes/redis/transport/script_call.py",
        "        if not self.resent:\n            self.slot",
        "        if True:\n            self.slot",
        _of("tests/on_redis/test_retries.py", "resent_call_keeps_its_slot_and_number"),
    ),
    Mutant(
        "loading server is not tried again",
        "tubes/redis/transport/script_call.py",
        'frozenset({"LOADING", "BUSY",',
        'frozenset({"BUSY",',
        _of("tests/faults/test_servers.py", "calls_wait_until_a_server_has_loaded_its_data"),
    ),
    Mutant(
        "retry skips its first delay",
        "tubes/backend/retry.py",
        "self.delays[min(failures, len(self.delays)) - 1]",
        "self.delays[min(failures + 1, len(self.delays)) - 1]",
        ("tests/unit/test_retry.py",),
    ),
    # -- leases, tokens, rates -----------------------------------------------------------------------------------------
    Mutant(
        "damaged lease is read",
        "tubes/values/lease.py",
        "is_whole = _text_of(packed[:-_SUM]) == text and lease.take > 0",
        "is_whole = lease.take > 0",
        _of(_FIFO, "malformed_lease_text_is_refused"),
    ),
    Mutant(
        "lease of take 0 is read",
        "tubes/values/lease.py",
        "== text and lease.take > 0",
        "== text",
        ("tests/unit/test_lease.py",),
    ),
    Mutant(
        "lease is good in another namespace",
        "tubes/serve/leases.py",
        'f"{namespace}\\n{lease}".encode',
        'f"{lease}".encode',
        ("tests/unit/test_lease.py",),
    ),
    Mutant(
        "lease without a signature is good",
        "tubes/serve/leases.py",
        'if hmac.compare_digest(text.encode(errors="replace"), given.encode(errors="replace")):',
        'if given.startswith(text) or hmac.compare_digest(b"", b"x"):',
        ("tests/unit/test_lease.py",),
    ),
    Mutant(
        "lease outlives its opening of the folder",
        "tubes/memory/port.py",
        "take if lease.session == self.shared.opening else NO_TAKE, lease",
        "take, lease",
        _of("tests/durable/test_opening.py", "lease_ends_when_the_store_is_reopened"),
    ),
    Mutant(
        "rate admits one more call",
        "tubes/serve/rates.py",
        "filled - rate.seconds - now > 1e-9:",
        "filled - rate.seconds - now > pace:",
        _of("tests/serve/test_tokens.py", "rate_refills_as_time_passes"),
    ),
    Mutant(
        "unused calls are saved up",
        "tubes/serve/rates.py",
        "max(self._filled.get(name, 0.0), now)",
        "self._filled.get(name, 0.0)",
        _of("tests/serve/test_tokens.py", "rate_refills_as_time_passes"),
    ),
    Mutant(
        "grant counts in every namespace",
        "tubes/serve/tokens.py",
        "right in grant.rights and fnmatchcase(namespace, grant.namespace) and",
        "right in grant.rights and",
        _of("tests/serve/test_tokens.py", "grant_allows_its_rights_on_its_tubes_only"),
    ),
    Mutant(
        "expired token is valid for another hour",
        "tubes/serve/tokens.py",
        "token.expires <= self._now()",
        "token.expires <= self._now() - 3600",
        _of("tests/serve/test_tokens.py", "a_token_is_revoked_and_expires"),
    ),
    # -- workers -------------------------------------------------------------------------------------------------------
    Mutant(
        "task is renewed when its time is over",
        "tubes/worker/in_flight.py",
        "now + max(self.span / 3, _SHORTEST)",
        "now + max(self.span * 3, _SHORTEST)",
        _of("tests/worker/test_worker_running.py", "task_is_renewed_while_its_handler_works"),
    ),
    Mutant(
        "handler of a lost task goes on",
        "tubes/worker/lease_renewer.py",
        "                    self._lost(one)\n",
        "                    pass\n",
        _of("tests/worker/test_worker_running.py", "async_handler_is_cancelled_when_its_task_is_lost"),
    ),
    Mutant(
        "task is claimed twice",
        "tubes/worker/lease_renewer.py",
        "self._kept.pop(in_flight, self) is None",
        "self._kept.pop(in_flight, None) is None",
        ("tests/unit/test_lease_renewer.py",),
    ),
    Mutant(
        "last attempt counts as one of several",
        "tubes/worker/outcomes.py",
        "task.attempts >= task.max_attempts)",
        "task.attempts > task.max_attempts)",
        ("tests/api/test_calls.py",),
    ),
    Mutant(
        "uncounted attempt counts",
        "tubes/worker/outcomes.py",
        'if getattr(error, "counts", True) is False:',
        'if getattr(error, "counts", True) is None:',
        _of("tests/worker/test_worker.py", "retry_may_leave_the_attempts_uncounted"),
    ),
    Mutant(
        "reason of a burial is lost",
        "tubes/worker/finishing.py",
        'elif verdict.verb == "bury":\n        facts = {"reason": verdict.reason}',
        'elif verdict.verb == "bury":\n        facts = {}',
        _of("tests/worker/test_worker.py", "handler_can_bury_its_task"),
    ),
)
