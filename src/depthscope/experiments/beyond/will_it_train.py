"""Will it train, and at which rate? The forecast of training held against trainings that it has not seen.

Random designs on three tasks climb a ladder of rates. The numbers of the forecast are fitted on one half of them; the
other half, drawn before anything was run, says how good it is. AdamW without warm-up, 50 to 64 steps.

depthscope reproduce beyond/will_it_train     seconds: the outcomes of the trainings come with the package. With
--set outcomes=trained --set folder=out/will_it_train they are made again: about an hour and a half of one core; stopped,
the same command goes on.
"""
