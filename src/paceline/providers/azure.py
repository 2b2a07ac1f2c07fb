"""Azure OpenAI (Microsoft Foundry): OpenAI's models, limited by deployment. Facts and sources: ``tables/azure.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from paceline.core.quota import DAY_S, TOKENS
from paceline.core.results import Refusal
from paceline.providers.base import Call, Headers
from paceline.providers.common import CostRule
from paceline.providers.openai import OpenAIDialect
from paceline.providers.quota_headers import Documented

_DEPLOYMENT = re.compile(r"/deployments/([^/]{1,100})/")


class Azure(OpenAIDialect):
    """Azure OpenAI. The deployment is the pool, for any model that it serves; ``host`` is the resource's, and part of it."""

    costs = CostRule(holds_maximum=True, refunds=False)
    documented = Documented(periods={TOKENS: 60.0}, alone=True, known=True)
    host = ""

    def at_host(self, host: str) -> Azure:
        if host in self.hosts:
            return self
        resource = copy(self)
        resource.host = host
        return resource

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request; the deployment is in the path, or on ``/openai/v1/`` in the body's ``model``."""
        call = super().describe(path, body)
        if call is None:
            return None
        match = _DEPLOYMENT.search(path)
        deployment = match[1] if match else call.model
        return replace(call, model=f"{self.host}/{deployment}" if self.host else deployment)

    def _refined(self, refusal: Refusal, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal:  # noqa: ARG002
        """A wait of a day is about a free or batch quota, never about a minute's."""
        return replace(refusal, period_s=DAY_S) if (refusal.retry_after_s or 0) >= DAY_S else refusal
