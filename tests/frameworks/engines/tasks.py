"""A Celery application; its broker is the Redis of the quotas, in another database."""

import os

import celery
from engine_work import answered

BROKER = os.environ["PACELINE_STORE"].rsplit("/", 1)[0] + "/1"

app = celery.Celery("tasks", broker=BROKER, backend=BROKER)
app.conf.task_acks_late = True  # a task is acknowledged at its end
app.conf.task_reject_on_worker_lost = True  # and goes back when its process is killed
app.conf.worker_prefetch_multiplier = 1

work = app.task(answered, name="work")
