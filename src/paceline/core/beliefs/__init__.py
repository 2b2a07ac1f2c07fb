"""What is believed of the limit of a provider, by the outcomes of attempts alone.

The last attempts are the evidence (``evidence``). Small models of a provider are the explanations, and the most likely one is believed
(``explanations``). Nothing is learned step by step, and nothing is tested by hand.
"""
