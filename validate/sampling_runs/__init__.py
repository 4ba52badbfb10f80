"""Sampling for real: plans of samplers carried out on a small transformer, their images beside those of one device."""




