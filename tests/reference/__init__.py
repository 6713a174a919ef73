"""The whole Clover model in plain torch, f32: what every faster form in the product is compared with.

`layers` holds the formulas (also used by scripts/demo to train), `model` the three passes over a state,
`engine` the verbs of the runtime's engine on top of it, `decoding` two decoding loops in their shortest form.
"""
