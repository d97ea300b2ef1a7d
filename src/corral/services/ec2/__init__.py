"""Handlers of EC2: instances, launch templates, instance types, key pairs, images and network resources.

Images and network resources are stored only: Corral starts no image, and does not route or filter packets.
"""
