"""The application of Celery."""

import os

import app
import celery

jobs = celery.Celery("jobs", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
ask = jobs.task(app.ask, name="ask")
