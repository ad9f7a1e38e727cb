-- Undo the take of a task whose caller left before it received the task.
-- in: task
return_token(task)  --#if RATED
task.attempts, task.undone = task.attempts - 1, true
--#move untake t
