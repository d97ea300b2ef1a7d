"""Handlers of EC2: instances, launch templates, instance types, key pairs, machine images (AMIs) and network resources.

Corral only stores machine images and network resources: it starts no image, and does not route or filter packets.
"""
