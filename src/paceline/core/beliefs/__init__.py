"""Models of a provider's limit, judged by the outcomes of attempts alone. No pool uses them yet: ``core.unstated`` paces.

The last attempts are the evidence (``evidence``). Small models of a provider are the explanations, and ``explanations.best`` returns
the most likely one. WEAK: if several processes share a key without a store, each of them takes the others for chance.
"""
