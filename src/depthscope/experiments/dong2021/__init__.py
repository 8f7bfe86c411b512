"""Dong, Cordonnier & Loukas 2021 (2103.03404): attention alone loses rank doubly exponentially with depth."""
